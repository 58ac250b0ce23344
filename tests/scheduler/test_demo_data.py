"""The demo data: told once, by the real operations, and true to the micro."""

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django import Settings

from billing import accounts, audit, statements
from billing.models import EntryKind
from billing.rating.intervals import month_of
from portal.accounts.models import Member, Team
from portal.catalog.models import Image, Plan
from portal.instances import usage
from portal.instances.models import Instance, Reason, State
from portal.instances.operations import admission
from portal.instances.operations.admission import LaunchRequest
from scheduler.demo.replay import KEY
from scheduler.demo.story import LAUNCHES
from scheduler.models import Allocation, Node


@pytest.fixture
def us(tmp_path: Path, settings: Settings) -> Member:
    """The demo member of a fresh demo installation."""
    settings.DEMO = True
    call_command("seed", demo_credentials=tmp_path / "demo.json")
    return Member.objects.select_related("team", "user").get(user__email="demo@headrace.local")


@pytest.mark.django_db
class TestDemoData:
    def test_is_a_past_that_the_audit_finds_true_and_a_present_that_waits(self, us: Member) -> None:
        out = StringIO()

        call_command("demo_data", stdout=out)

        ours = Instance.objects.for_team(us.team)
        assert "statements" in out.getvalue()
        assert len(statements.issued(account_id=us.team.account_id)) in (1, 2)
        assert set(ours.values_list("state", flat=True)) == set(State) - {
            State.STARTING,
            State.RUNNING,
            State.STOPPING,
        }
        assert Instance.objects.filter(reason=Reason.NODE_LOST).count() == 1
        assert Team.objects.count() == 4
        [lost] = Node.objects.filter(retired_at=None)
        assert lost.cordoned_at is not None
        assert {i.name for i in Instance.objects.in_queue_order()} == {w.name for w in LAUNCHES}
        held = Allocation.objects.filter(released_at=None)
        assert set(held.values_list("gpu__node", flat=True)) == {lost.pk}
        assert audit.differences(now=timezone.now(), usage=usage.runs()) == []

    def test_is_told_once(self, us: Member) -> None:
        request = LaunchRequest(plan=Plan.objects.all()[0], image=Image.objects.all()[0])
        admission.launch(actor=us, request=request, launch_key=f"{KEY}:1", now=timezone.now())
        out = StringIO()

        call_command("demo_data", stdout=out)

        assert "there already" in out.getvalue()
        assert Instance.objects.count() == 1
        assert not Node.objects.exists()

    def test_is_refused_where_a_past_is_written(self, us: Member) -> None:
        month_ago = timezone.now() - timedelta(days=32)
        account_id = us.team.account_id
        accounts.credit(
            account_id=account_id,
            amount_micros=1,
            cause="long ago",
            kind=EntryKind.ADJUSTMENT,
            note="",
            now=month_ago,
        )
        statements.issue(account_id=account_id, month=month_of(month_ago), now=timezone.now())

        with pytest.raises(CommandError, match="stays as it is"):
            call_command("demo_data")

        assert not Node.objects.exists()

    def test_is_refused_where_money_is_real(self, us: Member, settings: Settings) -> None:
        settings.DEMO = False

        with pytest.raises(CommandError, match="no demo installation"):
            call_command("demo_data")

        assert not Node.objects.exists()

    def test_is_refused_without_a_demo_member(self, settings: Settings) -> None:
        settings.DEMO = True

        with pytest.raises(CommandError, match="demo log-ins are missing"):
            call_command("demo_data")
