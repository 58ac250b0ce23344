"""What every page of the operator's console shares: rows are read, and acts call operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.templatetags.static import static
from django.urls import reverse
from unfold.admin import ModelAdmin, TabularInline

from portal.errors import DomainError

type Fields = dict[str, Any]


class ConsolePolicyMiddleware:
    """Gives the console, and nothing else, the content security policy that Unfold needs.

    Alpine evaluates expressions and Unfold writes styles; both stay forbidden on all other pages.
    Stands inside Django's own policy middleware, which reads what is set here.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.resolver_match and "admin" in request.resolver_match.namespaces:
            response._csp_config = settings.CONSOLE_CSP  # type: ignore[attr-defined]
        return response


# What Unfold asks `has_act_permission` for.
ACT = ["act"]


class NothingAsked(forms.Form):
    """An act that needs no more than a yes."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The page that stands before something is done: what it is, and what follows from it."""

    title: str
    consequence: str = ""
    button: str = ""
    ends_something: bool = False
    template: str = "admin/act.html"


@dataclass(frozen=True, kw_only=True)
class Act(Question):
    """What an operator can do, on a page of its own that asks first.

    `does` gets the form's fields, calls one operation and returns the row it was done to, with a
    sentence for the operator and the row's history.
    """

    does: Callable[[Fields], tuple[Model, str]]
    form: Callable[..., forms.Form] = NothingAsked
    initial: Fields = field(default_factory=dict)


class ReadingAdmin(ModelAdmin):
    """Lists, searches and shows rows. No form adds, edits or removes one: an act does.

    `fitting` says of some acts (by the method's name) whether they make sense for a row.
    """

    list_per_page = 50
    show_full_result_count = False
    fitting: ClassVar[Mapping[str, Callable[[Any], bool]]] = {}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_act_permission(self, request: HttpRequest, _obj: object = None) -> bool:
        """Who may do acts: whom Django's own permission would let change such rows.

        Named for Unfold, which would look a dotted permission up in a database that `check` and
        the first `migrate` do not have yet.
        """
        permission = f"{self.opts.app_label}.change_{self.opts.model_name}"
        return request.user.has_perm(permission)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        row = self.get_object(request, object_id)
        prefix = f"{self.opts.app_label}_{self.opts.model_name}_"
        return [
            act
            for act in super().get_actions_detail(request, object_id)
            if self.fitting.get(act.action_name.removeprefix(prefix), bool)(row)
        ]

    def row(self, object_id: str) -> Any:
        """The row an act is about, or 404."""
        return get_object_or_404(self.model, pk=object_id)

    def ask(self, request: HttpRequest, act: Act) -> HttpResponse:
        """Show the act's page, or do the act where the page was sent."""
        sent = request.method == "POST"
        form = act.form(request.POST if sent else None, initial=act.initial)
        if sent and form.is_valid():
            return self.carry_out(request, act, form)
        return self.page(request, act, form, status=422 if sent else 200)

    def carry_out(self, request: HttpRequest, act: Act, form: forms.Form) -> HttpResponse:
        """Do the act, and note it in the row's history; a refusal comes back on the page."""
        try:
            row, sentence = act.does(form.cleaned_data)
        except DomainError as refusal:
            form.add_error(None, " ".join(filter(None, [str(refusal), refusal.next_step])))
            return self.page(request, act, form, status=422)
        self.log_change(request, row, sentence)
        messages.success(request, sentence)
        return HttpResponseRedirect(self.page_of(row))

    def page(
        self,
        request: HttpRequest,
        question: Question,
        form: forms.Form,
        *,
        status: int = 200,
        **extra: Any,
    ) -> TemplateResponse:
        """A question's page; `extra` is what its template needs besides."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": question.title,
            "question": question,
            "form": form,
            "back": self.page_of(None),
            **extra,
        }
        return TemplateResponse(request, question.template, context, status=status)

    def page_of(self, row: Model | None) -> str:
        """The page of one row of this list, or the list itself for anything else."""
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}"
        if isinstance(row, self.model):
            return reverse(f"{name}_change", args=[row.pk])
        return reverse(f"{name}_changelist")


class ReadingInline(TabularInline):
    """Rows that belong to the one shown, to be read."""

    extra = 0
    can_delete = False
    show_title = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def environment(_request: HttpRequest) -> list[str]:
    """The label in the console's corner, so that nobody acts on the wrong system."""
    return ["Demo", "info"] if settings.DEMO else ["Production", "danger"]


def mark(_request: HttpRequest) -> str:
    return static("img/mark.svg")


# Title → (icon, what it lists). A page is shown to whom may view what it lists.
ROOMS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "Customers": (
        ("Teams", "groups", "accounts.team"),
        ("People", "person", "accounts.user"),
        ("Instances", "deployed_code", "instances.instance"),
    ),
    "Catalogue": (
        ("Plans and prices", "sell", "catalog.plan"),
        ("Images", "layers", "catalog.image"),
    ),
    "Fleet": (
        ("Nodes", "dns", "scheduler.node"),
        ("GPUs", "memory", "scheduler.gpu"),
        ("Leases", "assignment_turned_in", "scheduler.lease"),
        ("Join tokens", "key", "scheduler.jointoken"),
    ),
    "Money": (
        ("Accounts", "account_balance_wallet", "billing.account"),
        ("Ledger", "receipt_long", "billing.ledgerentry"),
        ("Usage", "timer", "billing.usageinterval"),
        ("Price books", "menu_book", "billing.pricebook"),
        ("Statements", "description", "billing.statement"),
    ),
}


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """The sidebar: the rooms, and in each what this person may look at."""
    home = {"title": "Overview", "icon": "water_drop", "link": reverse("admin:index")}
    return [
        {"items": [home]},
        *({"title": room, "items": _links(request, room)} for room in ROOMS),
    ]


def _links(request: HttpRequest, room: str) -> list[dict[str, str]]:
    links = []
    for title, icon, label in ROOMS[room]:
        app, model = label.split(".")
        if request.user.has_perm(f"{app}.view_{model}"):
            link = reverse(f"admin:{app}_{model}_changelist")
            links.append({"title": title, "icon": icon, "link": link})
    return links
