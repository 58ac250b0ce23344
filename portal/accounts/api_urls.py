from django.urls import path
from rest_framework.routers import SimpleRouter

from portal.accounts.api import (
    LogIn,
    LogOut,
    MemberViewSet,
    MeView,
    SignUp,
    SshKeyViewSet,
    TeamViewSet,
    TokenViewSet,
    Verify,
)

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("teams", TeamViewSet, basename="team")
router.register("members", MemberViewSet, basename="member")
router.register("tokens", TokenViewSet, basename="token")
router.register("ssh-keys", SshKeyViewSet, basename="ssh-key")

urlpatterns = [
    path("auth/signup", SignUp.as_view()),
    path("auth/verify", Verify.as_view()),
    path("auth/login", LogIn.as_view()),
    path("auth/logout", LogOut.as_view()),
    path("me", MeView.as_view()),
    *router.urls,
]
