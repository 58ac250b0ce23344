"""Proves that events, intervals and ledger tell one story; exits non-zero where they do not."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone

from billing import audit
from portal.instances import usage


class Command(BaseCommand):
    help = "Compare what ran (events), what was metered (intervals) and what was charged (ledger)."

    def handle(self, *_args: Any, **_options: Any) -> None:
        now = timezone.now()
        with transaction.atomic():
            # One snapshot for all of it: what lands meanwhile is not half seen.
            with transaction.get_connection().cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            report = audit.examine(now=now, usage=usage.runs())
        for check, count in report.counts.items():
            self.stdout.write(f"{check}: {count} compared")
        for difference in report.differences:
            self.stderr.write(str(difference))
        if report.differences:
            raise CommandError(f"{len(report.differences)} differences")
        self.stdout.write(self.style.SUCCESS("Usage, intervals and ledger agree to the micro."))
