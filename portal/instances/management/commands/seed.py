"""Fills an empty installation: catalogue, prices, and (for a first look) two people."""

import json
import math
import secrets
from pathlib import Path
from typing import Any

from allauth.account.models import EmailAddress
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.utils import timezone

from billing import prices
from portal.accounts import operations as accounts
from portal.accounts.models import Member, User
from portal.catalog.models import Image, Plan
from portal.catalog.seeds import CARDS, IMAGES, simulated_node


class Command(BaseCommand):
    help = "Seed plans, images and prices where there are none. Safe to run again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--print-simulated-node",
            action="store_true",
            help="Print a simulated node's environment as JSON, and do nothing else.",
        )
        parser.add_argument(
            "--demo-credentials",
            type=Path,
            help="Make a demo member and a demo admin, and write their log-ins to this file.",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["print_simulated_node"]:
            self.stdout.write(json.dumps(simulated_node()))
            return
        with transaction.atomic():
            if not Plan.objects.exists():
                self._seed_catalogue()
            if options["demo_credentials"]:
                self._seed_people(options["demo_credentials"])

    def _seed_catalogue(self) -> None:
        now = timezone.now()
        rates: dict[str, int] = {}
        for card in CARDS:
            for count in card.counts:
                sku = f"{card.slug}-{count}x"
                Plan.objects.create(
                    sku=sku,
                    gpu_model=card.model,
                    gpu_count=count,
                    gpu_memory_gib=math.ceil(card.memory_mib / 1024),
                    vcpus=card.vcpus * count,
                    memory_gib=card.memory_gib * count,
                    disk_gib=card.disk_gib * count,
                )
                rates[sku] = card.micros_per_hour * count
        prices.publish(prices=rates, effective_from=now, note="The first price book.", now=now)
        Image.objects.bulk_create(
            Image(
                slug=slug,
                name=name,
                reference=reference,
                description=description,
                command=list(command),
                ports=list(ports),
                ready_port=ready_port,
            )
            for slug, name, reference, description, command, ports, ready_port in IMAGES
        )

    def _seed_people(self, path: Path) -> None:
        """Log-ins that nobody could guess, kept where only their owner reads them."""
        known = json.loads(path.read_text()) if path.exists() else {}
        log_ins: dict[str, str] = {}
        for email, staff in (("demo@headrace.local", False), ("admin@headrace.local", True)):
            password = known.get(email) or secrets.token_urlsafe(9)
            log_ins[email] = password
            user = User.objects.filter(email=email).first()
            if user is not None:
                if email not in known:  # its password was written down elsewhere, or is lost
                    user.set_password(password)
                    user.save(update_fields=["password"])
                continue
            user = User.objects.create_user(email, password, is_staff=staff, is_superuser=staff)
            EmailAddress.objects.create(user=user, email=email, verified=True, primary=True)
            if not Member.objects.of_user(user.pk).exists():
                accounts.create_team(
                    owner=user, name=email.partition("@")[0].title(), now=timezone.now()
                )
        if known != log_ins:
            path.touch(mode=0o600)
            path.write_text(json.dumps(log_ins, indent=2))
