"""Everything that can be done to people, teams and the keys that act for them."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q

from billing import accounts as billing_accounts
from billing import locking
from portal.accounts import ssh_keys
from portal.accounts.models import (
    ApiToken,
    IdempotentReply,
    Member,
    PriorityClass,
    SshKey,
    Team,
    User,
)
from portal.accounts.roles import Permission, Role, Scope
from portal.errors import Conflict, DomainError

TOKEN_PREFIX = "hr_"  # noqa: S105 - what every token begins with, so that leaked ones are found
TOKEN_BYTES = 32  # 43 url-safe characters
SHOWN_CHARACTERS = 8
TOKENS_PER_MEMBER = 100
SSH_KEYS_PER_USER = 100
GPU_QUOTA_MAX = 100_000
# Writing the moment of every single request would make each a write to the same row.
LAST_USED_PRECISION = timedelta(minutes=1)


class InvalidName(DomainError):
    code = "invalid_name"


class InvalidToken(DomainError):
    code = "invalid_token_request"


class TooMany(DomainError):
    code = "too_many"


class InvalidSshKey(DomainError):
    code = "invalid_ssh_key"


class SshKeyExists(Conflict):
    code = "ssh_key_exists"


class InvalidQuota(DomainError):
    code = "invalid_quota"


@transaction.atomic
def create_team(*, owner: User, name: str, now: datetime) -> Team:
    """A new team with `owner` in it, its billing account, and the trial credit on it.

    Raises InvalidName.
    """
    _check_name(name, longest=100)
    account = billing_accounts.open_account(code=f"team:{uuid4()}")
    team = Team.objects.create(
        name=name,
        account_id=account.pk,
        gpu_quota=settings.DEFAULT_GPU_QUOTA,
        created_at=now,
    )
    Member.objects.create(user=owner, team=team, role=Role.OWNER)
    if settings.TRIAL_CREDIT_MICROS:
        billing_accounts.grant_trial_credit(
            account_id=account.pk, amount_micros=settings.TRIAL_CREDIT_MICROS, now=now
        )
    return team


@transaction.atomic
def ensure_own_team(*, user: User, now: datetime) -> Team | None:
    """Give a user who is in no team one of their own, named after their mail address.

    Returns None where there was one already. Called at sign-up and at each log-in, so that a
    sign-up cut off between the user and the team is mended by the next log-in.
    """
    # The user's row serialises the calls: two log-ins at once must not grant two trial credits.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if Member.objects.of_user(user.pk).exists():
        return None
    return create_team(owner=user, name=user.email.partition("@")[0], now=now)


@transaction.atomic
def issue_token(
    *,
    actor: Member,
    name: str,
    scopes: Collection[Scope],
    expires_at: datetime | None,
    now: datetime,
) -> tuple[ApiToken, str]:
    """A new token that acts as `actor`, and its secret, which is kept nowhere.

    Raises Forbidden, InvalidName, InvalidToken (no scope, or over before it begins) or TooMany.
    """
    actor.require(Permission.MANAGE_TOKENS)
    _check_name(name, longest=60)
    if not scopes:
        raise InvalidToken("A token needs at least one scope.", next_step="Name a scope.")
    if expires_at is not None and expires_at <= now:
        raise InvalidToken("The token would have expired already.", next_step="Name a later time.")
    if actor.tokens.filter(revoked_at=None).count() >= TOKENS_PER_MEMBER:
        raise TooMany(
            f"You have {TOKENS_PER_MEMBER} tokens already.", next_step="Revoke one of them."
        )
    secret = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    token = ApiToken.objects.create(
        member=actor,
        name=name,
        prefix=secret[:SHOWN_CHARACTERS],
        digest=digest(secret),
        scopes=sorted(set(scopes)),
        created_at=now,
        expires_at=expires_at,
    )
    return token, secret


def digest(secret: str) -> str:
    """What is stored of a token's secret. Its 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def note_token_use(*, token: ApiToken, now: datetime) -> None:
    """Write down that `token` was used; at most once a minute."""
    if token.last_used_at is not None and now - token.last_used_at < LAST_USED_PRECISION:
        return
    ApiToken.objects.filter(pk=token.pk).filter(
        Q(last_used_at=None) | Q(last_used_at__lte=now - LAST_USED_PRECISION)
    ).update(last_used_at=now)


def revoke_token(*, actor: Member, token: ApiToken, now: datetime) -> None:
    """End a token of one's own, or as an owner any of the team's; twice is as good as once.

    Raises Forbidden.
    """
    if token.member_id != actor.pk:
        # Who may let people in may also shut out what acts for them.
        actor.require(Permission.INVITE)
    ApiToken.objects.filter(pk=token.pk, member__team=actor.team_id, revoked_at=None).update(
        revoked_at=now
    )


@transaction.atomic
def add_ssh_key(*, user: User, name: str, public_key: str, now: datetime) -> SshKey:
    """Keep a public key for later launches. Its comment is dropped.

    Raises InvalidName, InvalidSshKey, SshKeyExists (for this user) or TooMany.
    """
    _check_name(name, longest=60)
    try:
        key = ssh_keys.parse(public_key)
    except ssh_keys.MalformedKey as refusal:
        raise InvalidSshKey(
            str(refusal), next_step="Paste the content of a .pub file, e.g. ~/.ssh/id_ed25519.pub."
        ) from refusal
    if user.ssh_keys.count() >= SSH_KEYS_PER_USER:
        raise TooMany(
            f"You have {SSH_KEYS_PER_USER} SSH keys already.", next_step="Remove one of them."
        )
    try:
        with transaction.atomic():
            return SshKey.objects.create(
                user=user,
                name=name,
                public_key=key.line,
                fingerprint=key.fingerprint,
                created_at=now,
            )
    except IntegrityError as error:
        raise SshKeyExists("You have added this key already.") from error


def remove_ssh_key(*, user: User, key: SshKey) -> None:
    """Forget a key. Instances that were launched with it keep letting it in."""
    SshKey.objects.filter(pk=key.pk, user=user).delete()


def set_quota(*, team: Team, gpu_quota: int) -> None:
    """How many GPUs `team` may hold at once from now on; what runs already keeps running.

    Raises InvalidQuota.
    """
    if not 0 <= gpu_quota <= GPU_QUOTA_MAX:
        raise InvalidQuota(f"A quota lies between 0 and {GPU_QUOTA_MAX} GPUs.")
    Team.objects.filter(pk=team.pk).update(gpu_quota=gpu_quota)


def set_priority(*, team: Team, priority_class: PriorityClass) -> None:
    """Where in the queue `team` stands from the next cycle on."""
    Team.objects.filter(pk=team.pk).update(priority_class=PriorityClass(priority_class))


@transaction.atomic
def suspend_team(*, team: Team, now: datetime) -> None:
    """From `now` on `team` launches nothing. What it has in use is the caller's to stop."""
    # A launch that was admitted a moment ago is among that: its lock is waited for.
    locking.lock(team.account_id)
    Team.objects.filter(pk=team.pk, suspended_at=None).update(suspended_at=now)


def unsuspend_team(*, team: Team) -> None:
    """Let `team` launch again."""
    Team.objects.filter(pk=team.pk).update(suspended_at=None)


def suspend_user(*, user: User) -> None:
    """Shut a person out: password, sessions and tokens open nothing from the next request on."""
    User.objects.filter(pk=user.pk).update(is_active=False)


def reinstate_user(*, user: User) -> None:
    """Let a suspended person in again; sessions and tokens that have not expired work again."""
    User.objects.filter(pk=user.pk).update(is_active=True)


def forget_replies(*, now: datetime) -> int:
    """Drop the idempotency keys that are older than their lifetime; returns how many."""
    deleted, _ = IdempotentReply.objects.filter(
        created_at__lt=now - settings.IDEMPOTENCY_KEY_LIFETIME
    ).delete()
    return deleted


def _check_name(name: str, *, longest: int) -> None:
    if not name.strip() or len(name) > longest or not name.isprintable():
        raise InvalidName(
            "This cannot be a name.",
            next_step=f"Use 1 to {longest} printable characters.",
        )
