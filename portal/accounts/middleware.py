"""For whom a signed-in person acts: one member of one team per request."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from portal.accounts.models import Member

# The session's key for the id of the team that its person acts for.
TEAM_SESSION_KEY = "team"


class MemberMiddleware:
    """Sets `request.member` (see `portal.http.PortalRequest`). Stands after authentication."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.member = current_member(request)  # type: ignore[attr-defined]
        return self.get_response(request)


def current_member(request: HttpRequest) -> Member | None:
    """The person of this session in the team it names, or else in their first team."""
    if not request.user.is_authenticated:
        return None
    memberships = Member.objects.of_user(request.user.pk)
    chosen = request.session.get(TEAM_SESSION_KEY)
    member = memberships.filter(team=chosen).first() if chosen is not None else None
    return member or memberships.first()
