"""The API of money: what is there, what was used, and what a month came to."""

from datetime import date, datetime
from typing import Any

from django.http import Http404, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import funds, statements, usage
from portal.accounts.authentication import acting_member
from portal.accounts.models import Team
from portal.accounts.roles import Scope
from portal.api.money import money
from portal.wallet import usage_csv
from portal.wallet.serializers import (
    BalanceDetail,
    StatementDetail,
    StatementList,
    UsageDetail,
    UsageQuery,
)


class BalanceView(APIView):
    read_scope = write_scope = Scope.BILLING

    @extend_schema(tags=["money"], responses=BalanceDetail)
    def get(self, request: Request) -> Response:
        """The team's money: there, set aside, and being used."""
        account_id = acting_member(request).team.account_id
        balance = funds.balance(account_id, now=timezone.now())
        detail = BalanceDetail(
            {
                "available": money(balance.available_micros),
                "settled": money(balance.settled_micros),
                "accrued": money(balance.accrued_micros),
                "held": money(balance.held_micros),
                "burn_per_hour": money(balance.burn_micros_per_hour),
                "exhaust_at": balance.exhaust_at,
            }
        )
        return Response(detail.data)


class StatementsView(APIView):
    read_scope = write_scope = Scope.BILLING

    @extend_schema(tags=["money"], operation_id="statements_list", responses=StatementList)
    def get(self, request: Request) -> Response:
        """Every month that is issued, the newest first."""
        issued = statements.issued(account_id=acting_member(request).team.account_id)
        page = {"next": None, "previous": None, "results": issued}
        return Response(StatementList(page).data)


class StatementView(APIView):
    read_scope = write_scope = Scope.BILLING

    @extend_schema(
        tags=["money"],
        parameters=[
            OpenApiParameter("month", str, OpenApiParameter.PATH, pattern=r"^[0-9]{4}-[0-9]{2}$")
        ],
        responses=StatementDetail,
    )
    def get(self, request: Request, month: str) -> Response:
        """A month, line by line: as issued, or as far as it goes. `month` is yyyy-mm."""
        team = acting_member(request).team
        now = timezone.now()
        wanted = _month(month, team, now=now)
        statement = statements.find(account_id=team.account_id, month=wanted)
        if statement is None:
            statement = statements.preview(account_id=team.account_id, month=wanted, now=now)
        return Response(StatementDetail(statement).data)


class UsageView(GenericAPIView[Any]):
    read_scope = write_scope = Scope.BILLING
    page_order = ("-started_at", "pk")

    @extend_schema(
        tags=["money"],
        operation_id="usage_list",
        parameters=[UsageQuery],
        responses={(200, "application/json"): UsageDetail(many=True), (200, "text/csv"): str},
    )
    def get(self, request: Request) -> HttpResponseBase:
        """What was used, interval by interval; `format=csv` gives all of it in one file."""
        query = UsageQuery(data=request.query_params.dict())
        query.is_valid(raise_exception=True)
        wanted = query.validated_data
        intervals = usage.overlapping(
            account_id=acting_member(request).team.account_id,
            since=wanted.get("since"),
            until=wanted.get("until"),
        )
        now = timezone.now()
        if wanted["format"] == "csv":
            found = intervals.order_by("started_at", "pk").iterator()
            rows = usage_csv.rows(usage.used(interval, now=now) for interval in found)
            headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
            return StreamingHttpResponse(rows, content_type="text/csv", headers=headers)
        page = self.paginate_queryset(intervals) or []
        used = [usage.used(interval, now=now) for interval in page]
        return self.get_paginated_response(UsageDetail(used, many=True).data)


def _month(text: str, team: Team, *, now: datetime) -> date:
    """The first day of yyyy-mm. Raises Http404 for a month before the team's first, or to come."""
    try:
        month = date.fromisoformat(f"{text}-01")
    except ValueError as error:
        raise Http404 from error
    if not team.created_at.date().replace(day=1) <= month <= now.date():
        raise Http404
    return month
