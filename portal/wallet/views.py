"""A team's money: its balance, the running month, and the statements of those that are over."""

from datetime import UTC, date, datetime

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing import funds, statements
from portal.http import MemberRequest, for_members


@for_members
@require_safe
def overview(request: MemberRequest) -> HttpResponse:
    """Balance, running month and statements; asked by htmx, only the balance."""
    now = timezone.now()
    account_id = request.member.team.account_id
    context: dict[str, object] = {"balance": funds.balance(account_id, now=now)}
    if request.htmx:
        return render(request, "wallet/overview.html#balance", context)
    context["preview"] = statements.preview(account_id=account_id, month=_month_of(now), now=now)
    context["statements"] = statements.issued(account_id=account_id)
    return render(request, "wallet/overview.html", context)


@for_members
@require_safe
def statement(request: MemberRequest, month: date) -> HttpResponse:
    """A month's issued statement, or the running month as it stands. 404 for any other."""
    now = timezone.now()
    account_id = request.member.team.account_id
    found = statements.find(account_id=account_id, month=month)
    if found is None and month == _month_of(now):
        found = statements.preview(account_id=account_id, month=month, now=now)
    if found is None:
        raise Http404
    context = {"statement": found, "member": request.member}
    return render(request, "wallet/statement.html", context)


def _month_of(moment: datetime) -> date:
    return moment.astimezone(UTC).date().replace(day=1)
