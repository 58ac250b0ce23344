"""People, in the operator's console."""

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action, display

from portal.accounts import operations
from portal.accounts.models import Member, User
from portal.console import ACT, Act, Fields, ReadingAdmin, ReadingInline
from portal.errors import Conflict

# The console has no log-in of its own: the portal's has the limits and the verified address.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]


class OwnSuspension(Conflict):
    code = "own_suspension"


class MembershipInline(ReadingInline):
    model = Member
    fields = ("team", "role")
    verbose_name_plural = "Teams"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Member]:
        memberships: QuerySet[Member] = super().get_queryset(request)
        return memberships.select_related("team", "user")


@admin.register(User)
class UserAdmin(ReadingAdmin):
    list_display = ("email", "standing", "teams", "date_joined", "last_login")
    list_filter = ("is_active", "is_staff")
    search_fields = ("email", "memberships__team__name")
    ordering = ("email",)
    fields = ("email", "is_active", "is_staff", "is_superuser", "date_joined", "last_login")
    inlines = (MembershipInline,)
    actions_detail = ("suspend", "reinstate")
    actions_row = ("suspend", "reinstate")
    fitting = {
        "suspend": lambda user: user.is_active,
        "reinstate": lambda user: not user.is_active,
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        people: QuerySet[User] = super().get_queryset(request)
        return people.prefetch_related("memberships__team")

    @display(
        description="Standing",
        label={"Operator": "info", "Suspended": "danger", "Customer": "success"},
    )
    def standing(self, user: User) -> str:
        if not user.is_active:
            return "Suspended"
        return "Operator" if user.is_staff else "Customer"

    @display(description="Teams")
    def teams(self, user: User) -> str:
        return ", ".join(f"{member.team.name} ({member.role})" for member in user.memberships.all())

    @action(description="Suspend", icon="block", permissions=ACT)
    def suspend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        user = self.row(object_id)

        def does(_: Fields) -> tuple[User, str]:
            if user.pk == request.user.pk:
                raise OwnSuspension("You cannot suspend yourself.", next_step="Ask a colleague.")
            operations.suspend_user(user=user)
            return user, f"Suspended {user}."

        return self.ask(
            request,
            Act(
                title=f"Suspend {user}",
                consequence="Password, sessions and tokens open nothing from the next request on. "
                "What the person's teams run, runs on: suspend the team to stop that.",
                button="Suspend",
                does=does,
                ends_something=True,
            ),
        )

    @action(description="Reinstate", icon="undo", permissions=ACT)
    def reinstate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        user = self.row(object_id)

        def does(_: Fields) -> tuple[User, str]:
            operations.reinstate_user(user=user)
            return user, f"Reinstated {user}."

        return self.ask(
            request,
            Act(
                title=f"Reinstate {user}",
                consequence="Sessions and tokens that have not expired work again.",
                button="Reinstate",
                does=does,
            ),
        )
