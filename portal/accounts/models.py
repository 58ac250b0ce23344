"""People, the teams they rent in, and the keys that act for them."""

from collections.abc import Iterable
from typing import Any, ClassVar, Self

from django.contrib.auth.base_user import BaseUserManager
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

from portal.accounts.roles import GRANTS, Permission, Role
from portal.errors import Forbidden


class UserManager(BaseUserManager["User"]):
    """Makes users whose name is their e-mail address."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=self.normalize_email(email), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractUser):
    """A person who signs in. Owns nothing: everything rented belongs to a Team."""

    username = None  # type: ignore[assignment]
    email = models.EmailField("e-mail address", unique=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    objects = UserManager()  # type: ignore[assignment,misc]

    class Meta:
        constraints = [
            models.UniqueConstraint(Lower("email"), name="user_once_per_email"),
        ]

    def __str__(self) -> str:
        return self.email


class PriorityClass(models.IntegerChoices):
    """Who goes first in the queue; set per team by an operator."""

    TEST = 0, "Test"
    BATCH = 10, "Batch"
    NORMAL = 20, "Normal"
    CRITICAL = 30, "Latency-critical"


class Team(models.Model):
    """The customer: members share its instances, its quota and its billing account."""

    name = models.CharField(max_length=100)
    account = models.OneToOneField("billing.Account", on_delete=models.PROTECT)
    gpu_quota = models.PositiveIntegerField(default=1, help_text="GPUs it may hold at once.")
    priority_class = models.PositiveSmallIntegerField(
        choices=PriorityClass, default=PriorityClass.NORMAL
    )
    suspended_at = models.DateTimeField(null=True, blank=True, help_text="Launches nothing since.")
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} (#{self.pk})"


class MemberQuerySet(models.QuerySet["Member"]):
    def of_user(self, user_id: int | None) -> Self:
        return self.filter(user=user_id).select_related("team", "user").order_by("pk")


class Member(models.Model):
    """A user in a team, and what the team lets that user do. The actor of every operation."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="members")
    role = models.CharField(max_length=10, choices=[(role, role.title()) for role in Role])

    objects = MemberQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="member_once_per_team", fields=["user", "team"]),
            models.CheckConstraint(name="member_role_is_known", condition=Q(role__in=list(Role))),
        ]

    def __str__(self) -> str:
        return f"{self.user} as {self.role} of {self.team}"

    def require(self, permission: Permission) -> None:
        """Raise Forbidden unless this member's role grants `permission`."""
        if permission not in GRANTS[Role(self.role)]:
            raise Forbidden(
                f"Your role in this team ({self.role}) does not include this.",
                next_step="Ask an owner of the team.",
            )


class ApiToken(models.Model):
    """A secret that acts as one member, within its scopes. Only its digest is stored."""

    member = models.ForeignKey(Member, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=60)
    prefix = models.CharField(max_length=12, help_text="The first characters, to tell it apart.")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token.")
    scopes = ArrayField(models.CharField(max_length=20))
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    def grants(self, wanted: Iterable[str]) -> bool:
        return set(wanted) <= set(self.scopes)


class SshKey(models.Model):
    """A public key that a member's instances let in."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="ssh_keys")
    name = models.CharField(max_length=60)
    public_key = models.TextField()
    fingerprint = models.CharField(max_length=60)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="ssh_key_once_per_user", fields=["user", "fingerprint"]),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})"


class IdempotentReply(models.Model):
    """The answer given to an `Idempotency-Key`, so that a retry gets it again.

    It lands with what the request did, so there is one exactly where a request was answered.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="replies")
    key = models.CharField(max_length=100)
    request_digest = models.CharField(max_length=64, help_text="SHA-256 of method, path and body.")
    status = models.PositiveSmallIntegerField()
    body = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="idempotency_key_once_per_user", fields=["user", "key"]),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.status}"
