"""Who speaks to the API, for which team, and within which scopes."""

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from portal.accounts import operations
from portal.accounts.models import ApiToken, Member, User
from portal.accounts.roles import Scope
from portal.errors import Forbidden

SCHEME = "bearer"


class NoTeam(Forbidden):
    code = "no_team"


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer hr_…`. The token acts as its member and as nobody else."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME:
            return None
        now = timezone.now()
        tokens = ApiToken.objects.select_related("member__user", "member__team")
        try:
            token = tokens.get(digest=operations.digest(secret.strip()))
        except ApiToken.DoesNotExist as error:
            raise AuthenticationFailed("This token is not known.", "token_unknown") from error
        if token.revoked_at is not None:
            raise AuthenticationFailed("This token was revoked.", "token_revoked")
        if token.expires_at is not None and token.expires_at <= now:
            raise AuthenticationFailed("This token has expired.", "token_expired")
        user = token.member.user
        if not user.is_active:
            raise AuthenticationFailed("This user is suspended.", "user_suspended")
        operations.note_token_use(token=token, now=now)
        return user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="api"'


class WithinScope(BasePermission):
    """A token does only what its scopes say; a session may do all that its person may.

    Each view has a `read_scope` and a `write_scope`; None: a signed-in person, never a token.
    """

    def has_permission(self, request: Request, view: object) -> bool:
        if not isinstance(request.auth, ApiToken):
            return request.user.is_authenticated
        wanted = needed_scope(view, request.method or "")
        if wanted is None:
            raise PermissionDenied("A token cannot do this: log in.", "session_required")
        if not request.auth.grants([wanted]):
            raise PermissionDenied(f"The token lacks the scope “{wanted}”.", "scope_missing")
        return True


def needed_scope(view: object, method: str) -> Scope | None:
    """A view that names no scope fails closed: an AttributeError, not an open door."""
    name = "read_scope" if method in SAFE_METHODS else "write_scope"
    scope: Scope | None = getattr(view, name)
    return scope


def acting_member(request: Request) -> Member:
    """For whom this request acts: the token's member, or the session's. Raises NoTeam."""
    if isinstance(request.auth, ApiToken):
        return request.auth.member
    member: Member | None = request._request.member  # type: ignore[attr-defined]
    if member is None:
        raise NoTeam("You are in no team yet.", next_step="Ask an owner to invite you.")
    return member


def member_for(request: Request, team_id: int | None) -> Member:
    """The member that acts when a body names a team. Another token's or stranger's team is absent.

    Raises Member.DoesNotExist, which is answered as 404.
    """
    member = acting_member(request)
    if team_id is None or team_id == member.team_id:
        return member
    if isinstance(request.auth, ApiToken):
        raise Member.DoesNotExist
    return Member.objects.of_user(member.user_id).get(team=team_id)
