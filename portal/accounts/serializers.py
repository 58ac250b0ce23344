"""What the API takes and gives about people, teams and their keys."""

from typing import Any

from rest_framework import serializers

from portal.accounts.models import ApiToken, Member, SshKey, Team
from portal.accounts.roles import Scope
from portal.api.strict import StrictSerializer, TextField

SCOPES = [(scope.value, scope.name.title()) for scope in Scope]
TOKEN_FIELDS = (
    *("id", "name", "prefix", "scopes"),
    *("created_at", "expires_at", "last_used_at", "revoked_at"),
)


class SignUpRequest(StrictSerializer):
    email = serializers.EmailField(max_length=254)
    password = TextField(max_length=128)


class VerifyRequest(StrictSerializer):
    key = TextField(max_length=200, help_text="The last part of the link in the mail.")


class LogInRequest(StrictSerializer):
    email = serializers.EmailField(max_length=254)
    password = TextField(max_length=128)
    token_name = TextField(
        max_length=60, required=False, help_text="Asks for a token beside the session."
    )


class Said(serializers.Serializer[Any]):
    """An answer that is only a sentence."""

    detail = serializers.CharField()


class TokenDetail(serializers.ModelSerializer[ApiToken]):
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))

    class Meta:
        model = ApiToken
        fields = TOKEN_FIELDS


class IssuedToken(TokenDetail):
    """A new token with its secret, which is shown this once: a replayed answer has null."""

    secret = serializers.CharField(allow_null=True)

    class Meta:
        model = ApiToken
        fields = (*TOKEN_FIELDS, "secret")


class TokenRequest(StrictSerializer):
    name = TextField(max_length=60)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(SCOPES), min_length=1, max_length=len(SCOPES)
    )
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Absent or null: never."
    )


class SshKeyDetail(serializers.ModelSerializer[SshKey]):
    class Meta:
        model = SshKey
        fields = ("id", "name", "public_key", "fingerprint", "created_at")


class SshKeyRequest(StrictSerializer):
    name = TextField(max_length=60)
    public_key = TextField(max_length=8_192, help_text="One line, as in a .pub file.")


class TeamDetail(serializers.ModelSerializer[Team]):
    class Meta:
        model = Team
        fields = ("id", "name", "gpu_quota", "priority_class", "suspended_at", "created_at")


class MemberDetail(serializers.ModelSerializer[Member]):
    email = serializers.EmailField(source="user.email")

    class Meta:
        model = Member
        fields = ("id", "email", "role")


class Me(serializers.Serializer[Member]):
    """Who asks, for which team, and what that member may do."""

    email = serializers.EmailField(source="user.email")
    staff = serializers.BooleanField(source="user.is_staff")
    role = serializers.CharField()
    team = TeamDetail()


class LoggedIn(serializers.Serializer[Any]):
    """A session was opened; the token is null unless one was asked for."""

    email = serializers.EmailField()
    token = IssuedToken(allow_null=True)
