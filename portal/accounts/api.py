"""The API of people, teams and their keys."""

from datetime import timedelta

from django.contrib.auth import logout
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import mixins, status
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from portal.accounts import entrance, operations
from portal.accounts.authentication import acting_member
from portal.accounts.idempotency import idempotent
from portal.accounts.models import ApiToken, Member, SshKey, Team
from portal.accounts.roles import Scope
from portal.accounts.serializers import (
    IssuedToken,
    LoggedIn,
    LogInRequest,
    Me,
    MemberDetail,
    Said,
    SignUpRequest,
    SshKeyDetail,
    SshKeyRequest,
    TeamDetail,
    TokenDetail,
    TokenRequest,
    VerifyRequest,
)
from portal.api.schema import IDEMPOTENCY_KEY
from portal.api.strict import Nothing, parsed

LOGIN_TOKEN_LIFETIME = timedelta(days=90)


class Entrance(APIView):
    """What is open to everyone; JSON alone is read, so no foreign page can send it unseen."""

    authentication_classes = ()
    permission_classes = (AllowAny,)


class SignUp(Entrance):
    throttle_scopes = {"post": "signup"}

    @extend_schema(tags=["auth"], request=SignUpRequest, responses={202: Said})
    def post(self, request: Request) -> Response:
        """Make a user, a team of their own and its trial credit; a mail asks to verify."""
        entrance.sign_up(request._request, **parsed(SignUpRequest, request))
        said = {"detail": "A mail was sent to this address. Open its link, then log in."}
        return Response(said, status=status.HTTP_202_ACCEPTED)


class Verify(Entrance):
    throttle_scopes = {"post": "login"}

    @extend_schema(tags=["auth"], request=VerifyRequest, responses={200: Said})
    def post(self, request: Request) -> Response:
        """Confirm a mail address with the key of its link."""
        entrance.verify(request._request, **parsed(VerifyRequest, request))
        return Response({"detail": "The address is verified. You can log in."})


class LogIn(Entrance):
    throttle_scopes = {"post": "login"}

    @extend_schema(tags=["auth"], request=LogInRequest, responses={200: LoggedIn})
    def post(self, request: Request) -> Response:
        """Open a session; with `token_name`, issue a token of all scopes for 90 days too."""
        wanted = parsed(LogInRequest, request)
        name = wanted.pop("token_name", None)
        entrance.log_in(request._request, **wanted)
        user = request._request.user
        issued = None
        if name is not None:
            now = timezone.now()
            token, secret = operations.issue_token(
                actor=get_object_or_404(Member.objects.of_user(user.pk)[:1]),
                name=name,
                scopes=list(Scope),
                expires_at=now + LOGIN_TOKEN_LIFETIME,
                now=now,
            )
            issued = {**TokenDetail(token).data, "secret": secret}
        return Response({"email": wanted["email"], "token": issued})


class LogOut(APIView):
    read_scope = write_scope = None

    @extend_schema(tags=["auth"], request=Nothing, responses={204: None})
    def post(self, request: Request) -> Response:
        """End the session. A token is ended by revoking it."""
        parsed(Nothing, request)
        logout(request._request)
        return Response(status=status.HTTP_204_NO_CONTENT)


class MeView(APIView):
    read_scope = write_scope = Scope.READ

    @extend_schema(tags=["accounts"], responses=Me)
    def get(self, request: Request) -> Response:
        """Who asks, and for which team."""
        return Response(Me(acting_member(request)).data)


class TeamViewSet(mixins.ListModelMixin, GenericViewSet[Team]):
    """The teams that the asker acts for: a token's one, or all of a signed-in person."""

    read_scope = write_scope = Scope.READ
    serializer_class = TeamDetail
    page_order = ("pk",)

    def get_queryset(self) -> QuerySet[Team]:
        if isinstance(self.request.auth, ApiToken):
            return Team.objects.filter(pk=acting_member(self.request).team_id)
        return Team.objects.filter(members__user=self.request.user.pk)


class MemberViewSet(mixins.ListModelMixin, GenericViewSet[Member]):
    """Who is in the team."""

    read_scope = write_scope = Scope.READ
    serializer_class = MemberDetail
    page_order = ("pk",)

    def get_queryset(self) -> QuerySet[Member]:
        team = acting_member(self.request).team_id
        return Member.objects.filter(team=team).select_related("user")


class TokenViewSet(mixins.ListModelMixin, GenericViewSet[ApiToken]):
    """The asker's tokens in the team. Only a signed-in person makes and revokes them."""

    read_scope = Scope.READ
    write_scope = None
    serializer_class = TokenDetail
    lookup_value_converter = "int"
    page_order = ("-pk",)

    def get_queryset(self) -> QuerySet[ApiToken]:
        return ApiToken.objects.filter(member=acting_member(self.request).pk)

    @extend_schema(request=TokenRequest, responses={201: IssuedToken}, parameters=[IDEMPOTENCY_KEY])
    @idempotent(never_stored=("secret",))
    def create(self, request: Request) -> Response:
        """Issue a token. Its secret is in this answer and nowhere else."""
        wanted = parsed(TokenRequest, request)
        token, secret = operations.issue_token(
            actor=acting_member(request),
            name=wanted["name"],
            scopes=[Scope(scope) for scope in wanted["scopes"]],
            expires_at=wanted.get("expires_at"),
            now=timezone.now(),
        )
        issued = {**TokenDetail(token).data, "secret": secret}
        return Response(issued, status=status.HTTP_201_CREATED)

    @extend_schema(responses={204: OpenApiResponse(description="It opens nothing any more.")})
    def destroy(self, request: Request, pk: int) -> Response:
        """Revoke a token. Twice is as good as once."""
        token = get_object_or_404(self.get_queryset(), pk=pk)
        operations.revoke_token(actor=acting_member(request), token=token, now=timezone.now())
        return Response(status=status.HTTP_204_NO_CONTENT)


class SshKeyViewSet(mixins.ListModelMixin, GenericViewSet[SshKey]):
    """The asker's SSH keys, which a launch lets in."""

    read_scope = Scope.READ
    write_scope = Scope.INSTANCES
    serializer_class = SshKeyDetail
    lookup_value_converter = "int"
    page_order = ("-pk",)

    def get_queryset(self) -> QuerySet[SshKey]:
        return SshKey.objects.filter(user=self.request.user.pk)

    @extend_schema(
        request=SshKeyRequest, responses={201: SshKeyDetail}, parameters=[IDEMPOTENCY_KEY]
    )
    @idempotent()
    def create(self, request: Request) -> Response:
        """Add a public key."""
        key = operations.add_ssh_key(
            user=acting_member(request).user, now=timezone.now(), **parsed(SshKeyRequest, request)
        )
        return Response(SshKeyDetail(key).data, status=status.HTTP_201_CREATED)

    @extend_schema(responses={204: OpenApiResponse(description="It is forgotten.")})
    def destroy(self, request: Request, pk: int) -> Response:
        """Remove a key. Instances that were launched with it keep it."""
        key = get_object_or_404(self.get_queryset(), pk=pk)
        operations.remove_ssh_key(user=key.user, key=key)
        return Response(status=status.HTTP_204_NO_CONTENT)
