"""Makes a join token, and says how a machine uses it."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from scheduler import fleet


class Command(BaseCommand):
    help = "Print a one-use join token with which a machine enrols as a node."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--token-only", action="store_true", help="Print nothing but the token."
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        _, secret = fleet.create_join_token(by=None, now=timezone.now())
        if options["token_only"]:
            self.stdout.write(secret)
            return
        minutes = int(settings.JOIN_TOKEN_LIFETIME.total_seconds() // 60)
        self.stdout.write(
            f"On the machine, within {minutes} minutes:\n\n  {fleet.join_command(secret)}\n"
        )
