"""A busy team, its neighbours, nodes and more than a month of history, to look at pages with."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from portal.accounts.models import Member, User
from portal.errors import DomainError
from scheduler.demo.replay import AlreadyTold, Replay

DEMO_MEMBER = "demo@headrace.local"


class Command(BaseCommand):
    help = "Fill a demo installation with a past and a busy present. Safe to run again."

    def handle(self, *_args: Any, **_options: Any) -> None:
        if not settings.DEMO:
            raise CommandError("This is no demo installation (DEMO=1): its ledger stays true.")
        us = Member.objects.filter(user__email=DEMO_MEMBER).select_related("team", "user").first()
        operator = User.objects.filter(is_staff=True, is_active=True).order_by("pk").first()
        if us is None or operator is None:
            raise CommandError("The demo log-ins are missing: seed --demo-credentials makes them.")
        try:
            told = Replay(us=us, operator=operator, now=timezone.now()).tell()
        except AlreadyTold as refusal:
            self.stdout.write(str(refusal))
            return
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(
            f"Instances since {told.began_at:%F}: {told.instances}; statements: {told.statements}; "
            f"log in as {us.user} or, for the fleet, {operator}."
        )
