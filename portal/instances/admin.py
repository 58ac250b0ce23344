"""Teams and their instances, in the operator's console.

Teams are here, and not with people: what a team uses, and stopping it, is known on this floor.
"""

from typing import Any
from uuid import uuid4

from django import forms
from django.contrib import admin
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from billing import funds
from billing.rating.money import format_micros, parse_micros
from portal.accounts import goodwill
from portal.accounts import operations as accounts
from portal.accounts.models import Member, PriorityClass, Team
from portal.console import ACT, Act, Fields, ReadingAdmin, ReadingInline
from portal.instances.models import LIVE_STATES, Instance, InstanceEvent, State, Wanted
from portal.instances.operations import ending


class QuotaForm(forms.Form):
    gpu_quota = forms.IntegerField(
        label="GPUs it may hold at once", widget=UnfoldAdminIntegerFieldWidget
    )


class PriorityForm(forms.Form):
    priority_class = forms.TypedChoiceField(
        choices=PriorityClass.choices, coerce=int, widget=UnfoldAdminSelectWidget
    )


class CreditForm(forms.Form):
    amount = forms.CharField(
        label="US dollars", max_length=20, widget=UnfoldAdminTextInputWidget, help_text="E.g. 25.00"
    )
    because = forms.CharField(
        label="Why",
        max_length=100,
        widget=UnfoldAdminTextInputWidget,
        help_text="The ledger keeps it, with your name.",
    )
    # Made with the page, so that sending it twice gives once.
    key = forms.UUIDField(widget=forms.HiddenInput)

    def clean_amount(self) -> int:
        try:
            return parse_micros(self.cleaned_data["amount"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


class BecauseForm(forms.Form):
    because = forms.CharField(
        label="Why",
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="The team reads it.",
    )


class MemberInline(ReadingInline):
    model = Member
    fields = ("user", "role")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Member]:
        members: QuerySet[Member] = super().get_queryset(request)
        return members.select_related("user", "team")


@admin.register(Team)
class TeamAdmin(ReadingAdmin):
    list_display = ("name", "use", "priority", "balance", "standing", "created_at")
    list_filter = ("priority_class", ("suspended_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "members__user__email", "=id")
    ordering = ("name", "pk")
    fields = ("name", "use", "priority", "money", "suspended_at", "created_at")
    readonly_fields = ("use", "priority", "money")
    inlines = (MemberInline,)
    acts = ("set_quota", "set_priority", "grant_credit", "suspend", "unsuspend")
    actions_detail = acts
    actions_row = acts
    fitting = {
        "suspend": lambda team: team.suspended_at is None,
        "unsuspend": lambda team: team.suspended_at is not None,
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Team]:
        teams: QuerySet[Team] = super().get_queryset(request)
        live = Q(instances__state__in=LIVE_STATES)
        in_use = Coalesce(Sum("instances__plan__gpu_count", filter=live), 0)
        return teams.select_related("account").annotate(gpus_in_use=in_use)

    @display(description="GPUs used of quota", ordering="gpus_in_use")
    def use(self, team: Any) -> str:
        return f"{team.gpus_in_use} of {team.gpu_quota}"

    @display(
        description="Priority",
        ordering="priority_class",
        label={PriorityClass.CRITICAL.label: "warning", PriorityClass.TEST.label: "info"},
    )
    def priority(self, team: Team) -> str:
        return team.get_priority_class_display()

    @display(description="Balance", ordering="account__balance_micros")
    def balance(self, team: Team) -> str:
        return format_micros(team.account.balance_micros)

    @display(description="Balance")
    def money(self, team: Team) -> str:
        balance = funds.balance(team.account_id, now=timezone.now())
        return (
            f"{format_micros(balance.available_micros)} available"
            f" ({format_micros(balance.settled_micros)} settled, less"
            f" {format_micros(balance.held_micros)} held and use not charged yet),"
            f" spending {format_micros(balance.burn_micros_per_hour)} an hour"
        )

    @display(description="Standing", label={"Active": "success", "Suspended": "danger"})
    def standing(self, team: Team) -> str:
        return "Suspended" if team.suspended_at else "Active"

    @action(description="Set quota", icon="speed", permissions=ACT)
    def set_quota(self, request: HttpRequest, object_id: str) -> HttpResponse:
        team = self.row(object_id)

        def does(fields: Fields) -> tuple[Team, str]:
            accounts.set_quota(team=team, gpu_quota=fields["gpu_quota"])
            return (
                team,
                f"{team.name} may hold {fields['gpu_quota']} GPUs (before: {team.gpu_quota}).",
            )

        return self.ask(
            request,
            Act(
                title=f"Quota of {team.name}",
                consequence="It holds from the next launch on. What runs already keeps running.",
                button="Set quota",
                form=QuotaForm,
                initial={"gpu_quota": team.gpu_quota},
                does=does,
            ),
        )

    @action(description="Set priority", icon="low_priority", permissions=ACT)
    def set_priority(self, request: HttpRequest, object_id: str) -> HttpResponse:
        team = self.row(object_id)

        def does(fields: Fields) -> tuple[Team, str]:
            priority_class = PriorityClass(fields["priority_class"])
            accounts.set_priority(team=team, priority_class=priority_class)
            return team, f"{team.name} queues as “{priority_class.label}” from the next cycle on."

        return self.ask(
            request,
            Act(
                title=f"Priority of {team.name}",
                consequence="All that the team has waiting moves with it at the next cycle, within "
                "seconds: a higher class goes first, and within one, first come is first served. "
                "Nothing that runs is interrupted.",
                button="Set priority",
                form=PriorityForm,
                initial={"priority_class": team.priority_class},
                does=does,
            ),
        )

    @action(description="Grant credit", icon="volunteer_activism", permissions=ACT)
    def grant_credit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        team = self.row(object_id)

        def does(fields: Fields) -> tuple[Team, str]:
            goodwill.grant_credit(
                operator=request.user,  # type: ignore[arg-type]
                team=team,
                amount_micros=fields["amount"],
                because=fields["because"],
                key=str(fields["key"]),
                now=timezone.now(),
            )
            return team, f"Granted {format_micros(fields['amount'])}: {fields['because']}"

        return self.ask(
            request,
            Act(
                title=f"Grant credit to {team.name}",
                consequence="An adjustment in the ledger, from the house's goodwill account. "
                "It can be corrected by another entry, and never taken back out of the ledger.",
                button="Grant credit",
                form=CreditForm,
                initial={"key": uuid4()},
                does=does,
            ),
        )

    @action(description="Suspend", icon="block", permissions=ACT)
    def suspend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        team = self.row(object_id)

        def does(_: Fields) -> tuple[Team, str]:
            now = timezone.now()
            # First the door, then what is inside: nothing is launched between the two.
            accounts.suspend_team(team=team, now=now)
            stopped = ending.stop_team(team=team, by=request.user, now=now)  # type: ignore[arg-type]
            return team, f"Suspended {team.name}; told {stopped} of its instances to stop."

        running = Instance.objects.for_team(team).live().count()
        return self.ask(
            request,
            Act(
                title=f"Suspend {team.name}",
                consequence=f"It launches nothing from now on, and what it has in use is stopped: "
                f"{running} instances. Their meters close now.",
                button="Suspend and stop",
                does=does,
                ends_something=True,
            ),
        )

    @action(description="Lift suspension", icon="undo", permissions=ACT)
    def unsuspend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        team = self.row(object_id)

        def does(_: Fields) -> tuple[Team, str]:
            accounts.unsuspend_team(team=team)
            return team, f"{team.name} may launch again."

        return self.ask(
            request,
            Act(
                title=f"Lift the suspension of {team.name}",
                consequence="It may launch again. What was stopped stays stopped until its members "
                "start it.",
                button="Lift suspension",
                does=does,
            ),
        )


class EventInline(ReadingInline):
    model = InstanceEvent
    fields = ("at", "state", "reason", "explanation", "actor", "effective_at")
    ordering = ("at", "id")
    verbose_name_plural = "What happened"

    def get_queryset(self, request: HttpRequest) -> QuerySet[InstanceEvent]:
        events: QuerySet[InstanceEvent] = super().get_queryset(request)
        return events.select_related("actor")


STATE_COLOURS = {
    State.QUEUED.label: "info",
    State.STARTING.label: "primary",
    State.RUNNING.label: "success",
    State.STOPPING.label: "warning",
    State.FAILED.label: "danger",
}


@admin.register(Instance)
class InstanceAdmin(ReadingAdmin):
    list_display = ("name", "where_it_is", "team", "plan", "price", "real", "queued_at", "reason")
    list_filter = ("state", "simulated", "reason")
    search_fields = ("id__istartswith", "name", "team__name")
    list_select_related = ("team", "plan")
    ordering = ("-queued_at", "pk")
    fieldsets = (
        (None, {"fields": ("id", "name", "team", "launched_by", "real")}),
        (
            "Where it is",
            {"fields": ("where_it_is", "wanted", "explanation", "state_changed_at", "phase")},
        ),
        (
            "What was asked for",
            {"fields": ("plan", "image", "pricing", "price", "ports", "command", "queued_at")},
        ),
    )
    readonly_fields = ("id", "where_it_is", "price", "real")
    inlines = (EventInline,)
    actions_detail = ("stop", "terminate")
    actions_row = ("stop", "terminate")
    fitting = {
        "stop": lambda instance: instance.state in LIVE_STATES,
        "terminate": lambda instance: instance.state in (*LIVE_STATES, State.STOPPED),
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Instance]:
        instances: QuerySet[Instance] = super().get_queryset(request)
        return instances.select_related("team", "plan", "image", "launched_by__user")

    @display(description="State", ordering="state", label=STATE_COLOURS)
    def where_it_is(self, instance: Instance) -> str:
        return instance.get_state_display()

    @display(description="Price an hour", ordering="micros_per_hour")
    def price(self, instance: Instance) -> str:
        return format_micros(instance.micros_per_hour, decimals=4)

    @display(description="Runs in", label={"Simulation": "warning"})
    def real(self, instance: Instance) -> str:
        return "Simulation" if instance.simulated else "Container"

    @action(description="Stop", icon="stop_circle", permissions=ACT)
    def stop(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._end(
            request,
            self.row(object_id),
            Wanted.STOPPED,
            "Its meter closes now. A member of the team can start it again.",
        )

    @action(description="Terminate", icon="delete_forever", permissions=ACT)
    def terminate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._end(
            request,
            self.row(object_id),
            Wanted.TERMINATED,
            "Its meter closes now. It ends for good, and nobody can start it again.",
        )

    def _end(
        self, request: HttpRequest, instance: Instance, wanted: Wanted, consequence: str
    ) -> HttpResponse:
        verb = "Terminate" if wanted == Wanted.TERMINATED else "Stop"

        def does(fields: Fields) -> tuple[Instance, str]:
            ended = ending.end_by_operator(
                operator=request.user,  # type: ignore[arg-type]
                instance=instance,
                wanted=wanted,
                because=fields["because"],
                now=timezone.now(),
            )
            return (
                ended,
                f"“{ended.name}” is {ended.get_state_display().lower()}: {ended.explanation}",
            )

        return self.ask(
            request,
            Act(
                title=f"{verb} “{instance.name}” of {instance.team.name}",
                consequence=consequence,
                button=verb,
                form=BecauseForm,
                does=does,
                ends_something=True,
            ),
        )
