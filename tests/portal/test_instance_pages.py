"""Pages about instances: who sees what, what a form does, and when a page stops asking."""

from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.accounts import operations as accounts
from portal.accounts.models import Member
from portal.accounts.roles import Role
from portal.catalog.models import Plan
from portal.instances.lifecycle import Why
from portal.instances.models import Instance, Phase, Reason, State
from portal.instances.operations import ending, reports
from portal.instances.operations.reports import Ended, Progress
from tests.factories import make_image, make_instance, make_member, make_plan, make_team

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


@pytest.fixture
def member() -> Member:
    return make_member()


def signed_in(member: Member) -> Client:
    client = Client()
    client.force_login(member.user)
    return client


def make_running(member: Member) -> Instance:
    instance = make_instance(actor=member, now=timezone.now())
    now = timezone.now()
    reports.record_placed(instance_ids=[instance.pk], node_name="mill", simulated=False, now=now)
    instance.refresh_from_db()
    reports.record_started({instance.pk: {"8888": "10.0.0.9:30001"}}, now=now)
    instance.refresh_from_db()
    return instance


def launch_form(**changes: Any) -> dict[str, Any]:
    form = {"launch_key": str(uuid4()), "name": "", "ports": "", "env": "", "command": ""}
    return form | changes


class TestDashboard:
    def test_shows_what_is_in_use_and_the_credit_less_what_is_held(self, member: Member) -> None:
        instance = make_instance(actor=member, now=timezone.now())

        page = signed_in(member).get("/")

        assert instance.name in page.text
        assert "$97.51" in page.text  # of $100, with the first hour at $2.49 held

    def test_leaves_out_what_has_ended(self, member: Member) -> None:
        instance = make_instance(actor=member, now=timezone.now())
        ending.terminate(actor=member, instance=instance, now=timezone.now())

        assert "Nothing is running" in signed_in(member).get("/").text

    def test_gives_htmx_the_changing_part_alone(self, member: Member) -> None:
        fragment = signed_in(member).get("/", headers=HTMX).text

        assert 'id="now"' in fragment
        assert "<html" not in fragment


class TestInstanceList:
    def test_shows_the_team_its_own_and_nobody_elses(self, member: Member) -> None:
        ours, theirs = make_instance(actor=member), make_instance()

        page = signed_in(member).get(reverse("instances:list")).text

        assert str(ours.pk) in page
        assert str(theirs.pk) not in page

    def test_asks_again_only_while_something_may_change(self, member: Member) -> None:
        client, instance = signed_in(member), make_instance(actor=member)
        before = client.get(reverse("instances:list"), headers=HTMX).text
        ending.terminate(actor=member, instance=instance, now=timezone.now())
        after = client.get(reverse("instances:list"), headers=HTMX).text

        assert "hx-trigger" in before
        assert "hx-trigger" not in after

    def test_costs_as_many_queries_for_five_as_for_one(
        self, member: Member, django_assert_num_queries: Any
    ) -> None:
        client, plan = signed_in(member), make_plan()
        make_instance(actor=member, plan=plan)
        # Session, user, member, count, rows, costs.
        with django_assert_num_queries(6):
            client.get(reverse("instances:list"))
        for _ in range(4):
            make_instance(actor=member, plan=plan)
        with django_assert_num_queries(6):
            client.get(reverse("instances:list"))


class TestInstancePage:
    def test_tells_the_state_its_reason_and_the_way_in(self, member: Member) -> None:
        instance = make_running(member)

        page = signed_in(member).get(reverse("instances:detail", args=[instance.pk])).text

        assert "Running" in page
        assert "Placed on mill." in page
        assert "10.0.0.9:30001" in page

    def test_shows_how_far_the_image_is_pulled(self, member: Member) -> None:
        instance = make_instance(actor=member)
        reports.record_placed(
            instance_ids=[instance.pk], node_name="mill", simulated=True, now=timezone.now()
        )
        instance.refresh_from_db()
        reports.record_progress({instance.pk: Progress(Phase.PULLING, 62)})

        page = signed_in(member).get(reverse("instances:detail", args=[instance.pk])).text

        assert 'value="62"' in page
        assert "Simulated" in page

    def test_escapes_what_comes_from_a_node(self, member: Member) -> None:
        instance = make_instance(actor=member)
        reports.record_waiting(sentence="<script>alert(1)</script>", instance_ids=[instance.pk])

        page = signed_in(member).get(reverse("instances:detail", args=[instance.pk])).text

        assert "<script>alert" not in page

    def test_stops_asking_once_nothing_more_will_happen(self, member: Member) -> None:
        client, instance = signed_in(member), make_instance(actor=member)
        moving = client.get(reverse("instances:state", args=[instance.pk])).text
        ending.stop(actor=member, instance=instance, now=timezone.now())
        stopped = client.get(reverse("instances:state", args=[instance.pk])).text

        assert "every 1s" in moving
        assert "every" not in stopped

    def test_counts_the_cost_only_while_it_runs(self, member: Member) -> None:
        client, instance = signed_in(member), make_running(member)
        running = client.get(reverse("instances:cost", args=[instance.pk])).text
        ending.stop(actor=member, instance=instance, now=timezone.now())
        stopping = client.get(reverse("instances:cost", args=[instance.pk])).text

        assert "every 1s" in running
        assert "every 1s" not in stopping
        assert "the meter closed when stop was accepted" in stopping

    @pytest.mark.parametrize("page", ["detail", "state", "cost"])
    def test_does_not_exist_for_a_stranger(self, page: str) -> None:
        address = reverse(f"instances:{page}", args=[make_instance().pk])

        assert signed_in(make_member()).get(address).status_code == 404


class TestActing:
    def test_stops_and_starts_again_and_terminates(self, member: Member) -> None:
        client, instance = signed_in(member), make_instance(actor=member)
        states = []
        for act in ("stop", "start", "terminate"):
            answer = client.post(reverse(f"instances:{act}", args=[instance.pk]))
            instance.refresh_from_db()
            states.append((answer.status_code, instance.state))

        assert states == [(302, State.STOPPED), (302, State.QUEUED), (302, State.TERMINATED)]

    def test_answers_htmx_with_what_the_instance_is_now(self, member: Member) -> None:
        instance = make_instance(actor=member)

        answer = signed_in(member).post(reverse("instances:stop", args=[instance.pk]), headers=HTMX)

        assert "Start again" in answer.text
        assert "<html" not in answer.text

    def test_says_why_it_was_refused(self, member: Member) -> None:
        instance = make_instance(actor=member)
        ending.terminate(actor=member, instance=instance, now=timezone.now())

        answer = signed_in(member).post(
            reverse("instances:start", args=[instance.pk]), headers=HTMX
        )

        assert "Launch a new instance." in answer.text
        assert Instance.objects.get(pk=instance.pk).state == State.TERMINATED

    def test_is_refused_to_a_role_that_may_not_and_not_offered_to_it(self) -> None:
        team = make_team()
        instance = make_instance(actor=make_member(team))
        client = signed_in(make_member(team, role=Role.BILLING))

        page = client.get(reverse("instances:detail", args=[instance.pk])).text
        client.post(reverse("instances:stop", args=[instance.pk]))

        assert reverse("instances:stop", args=[instance.pk]) not in page
        assert Instance.objects.get(pk=instance.pk).state == State.QUEUED

    @pytest.mark.parametrize("act", ["stop", "start", "terminate"])
    def test_a_stranger_finds_nothing_and_changes_nothing(self, act: str) -> None:
        instance = make_instance()
        address = reverse(f"instances:{act}", args=[instance.pk])

        assert signed_in(make_member()).post(address).status_code == 404
        assert Instance.objects.get(pk=instance.pk).state == State.QUEUED

    @pytest.mark.parametrize("act", ["stop", "start", "terminate"])
    def test_is_never_done_by_a_link(self, member: Member, act: str) -> None:
        address = reverse(f"instances:{act}", args=[make_instance(actor=member).pk])

        assert signed_in(member).get(address).status_code == 405

    def test_needs_the_forms_token(self, member: Member) -> None:
        client, instance = Client(enforce_csrf_checks=True), make_instance(actor=member)
        client.force_login(member.user)

        answer = client.post(reverse("instances:stop", args=[instance.pk]))

        assert answer.status_code == 403
        assert "That page was too old" in answer.text


class TestLaunchPage:
    def test_launches_what_the_form_says(self, member: Member) -> None:
        plan, image = make_plan(), make_image()
        key = accounts.add_ssh_key(
            user=member.user, name="laptop", public_key=KEY, now=timezone.now()
        )
        form = launch_form(
            plan=plan.sku,
            image=image.slug,
            name="train",
            ports="8888, 6006",
            env="A=1\n\nB=x=y",
            command="sh -c 'sleep 5'",
            ssh_keys=[key.pk],
        )

        answer = signed_in(member).post(reverse("instances:launch"), form)

        instance = Instance.objects.get()
        assert answer["Location"] == reverse("instances:detail", args=[instance.pk])
        assert (instance.plan, instance.image, instance.name) == (plan, image, "train")
        assert instance.ports == [6006, 8888]
        assert instance.env == {"A": "1", "B": "x=y"}
        assert instance.command == ["sh", "-c", "sleep 5"]
        assert instance.ssh_keys == [key.public_key]

    def test_launches_once_however_often_the_form_is_sent(self, member: Member) -> None:
        client = signed_in(member)
        form = launch_form(plan=make_plan().sku, image=make_image().slug)

        answers = {client.post(reverse("instances:launch"), form)["Location"] for _ in range(2)}

        assert len(answers) == 1
        assert Instance.objects.count() == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"ports": "http"},
            {"ports": "8888; 1"},
            {"env": "no equals sign"},
            {"command": "sh -c 'open"},
            {"plan": "no-such-plan"},
            {"image": "no-such-image"},
            {"ssh_keys": ["999999"]},
            {"launch_key": "not-a-uuid"},
            {"name": "nul\0"},
        ],
        ids=str,
    )
    def test_refuses_what_makes_no_sense_and_writes_nothing(
        self, member: Member, change: dict[str, Any]
    ) -> None:
        form = launch_form(plan=make_plan().sku, image=make_image().slug) | change

        assert signed_in(member).post(reverse("instances:launch"), form).status_code == 422
        assert not Instance.objects.exists()

    def test_lets_nobody_use_another_persons_key(self, member: Member) -> None:
        key = accounts.add_ssh_key(
            user=make_member().user, name="theirs", public_key=KEY, now=timezone.now()
        )
        form = launch_form(plan=make_plan().sku, image=make_image().slug, ssh_keys=[key.pk])

        assert signed_in(member).post(reverse("instances:launch"), form).status_code == 422

    def test_predicts_the_refusal_beside_the_form(self) -> None:
        member = make_member(make_team(gpu_quota=0, credit_micros=0))
        plan = make_plan()
        make_image()

        address = f"{reverse('instances:launch')}?plan={plan.sku}"
        card = signed_in(member).get(address, headers=HTMX).text

        assert "this needs" in card
        assert "a launch needs the first hour" in card
        assert "ask your operator for a larger quota" in card
        assert "<html" not in card

    def test_offers_only_what_is_on_offer(self, member: Member) -> None:
        plan = make_plan()
        Plan.objects.filter(pk=plan.pk).update(retired_at=timezone.now())

        assert plan.sku not in signed_in(member).get(reverse("instances:launch")).text


def test_a_failed_instance_says_why_in_words(member: Member) -> None:
    instance = make_instance(actor=member)
    now = timezone.now()
    reports.record_placed(instance_ids=[instance.pk], node_name="mill", simulated=False, now=now)
    instance.refresh_from_db()
    why = Why(Reason.IMAGE_UNAVAILABLE, "The registry has no such image.")
    reports.record_over({instance.pk: Ended(why)}, now=now)

    page = signed_in(member).get(reverse("instances:detail", args=[instance.pk])).text

    assert "The image cannot be pulled" in page
    assert "The registry has no such image." in page


# A refusal fails the transaction that it comes in, which must not be the test's.
@pytest.mark.django_db(transaction=True)
class TestARefusedLaunch:
    @pytest.mark.parametrize(
        ("gpu_quota", "name", "next_step"),
        [
            (0, "", "ask your operator for a larger quota"),
            (8, "Not A Name", "Use lower-case letters, digits and hyphens"),
        ],
    )
    def test_says_why_and_what_to_do(self, gpu_quota: int, name: str, next_step: str) -> None:
        member = make_member(make_team(gpu_quota=gpu_quota))
        form = launch_form(plan=make_plan().sku, image=make_image().slug, name=name)

        answer = signed_in(member).post(reverse("instances:launch"), form)

        assert answer.status_code == 422
        assert next_step in answer.text
        assert not Instance.objects.exists()
