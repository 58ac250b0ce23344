"""Where sign-up and log-in, which are allauth's, meet our accounts."""

from django.utils import timezone

from portal.accounts import operations
from portal.accounts.models import User


def give_own_team(*, user: User, **_: object) -> None:
    """After a sign-up or a log-in: nobody is left without a team to act for."""
    operations.ensure_own_team(user=user, now=timezone.now())
