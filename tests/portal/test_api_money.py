import csv
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from billing import statements
from portal.accounts.models import Member
from portal.accounts.roles import Scope
from portal.instances.models import Instance
from tests.billing.factories import close_interval, open_interval
from tests.factories import H100_MICROS, NOON, make_instance, make_member, make_team
from tests.portal.callers import by_token, problem

MONEY = ["/balance", "/statements", "/statements/2026-01", "/usage"]
MONTH = date(2026, 1, 1)
AFTER = datetime(2026, 3, 1, tzinfo=UTC)


def use(member: Member, *, seconds: int, after: timedelta = timedelta(0)) -> Instance:
    """An instance that ran for `seconds`, at $2.49 an hour."""
    instance = make_instance(actor=member)
    started_at = NOON + after
    open_interval(reference=instance.pk, now=started_at)
    close_interval(reference=instance.pk, ended_at=started_at + timedelta(seconds=seconds))
    return instance


def micros(money: dict[str, Any]) -> int:
    assert money["currency"] == "USD"
    return int(money["amount_micros"])


@pytest.mark.django_db
class TestMoney:
    @pytest.mark.parametrize("path", MONEY)
    def test_needs_the_scope_billing(self, path: str) -> None:
        member = make_member()

        refused = by_token(member, Scope.READ, Scope.INSTANCES).get(f"/api/v1{path}")

        assert problem(refused) == (403, "scope_missing")
        assert by_token(member, Scope.BILLING).get(f"/api/v1{path}").status_code == 200

    @pytest.mark.parametrize("path", MONEY)
    def test_of_another_team_is_not_shown(self, path: str) -> None:
        instance = use(make_member(), seconds=90)

        answer = by_token(make_member(make_team(credit_micros=1))).get(f"/api/v1{path}")

        assert str(instance.pk) not in answer.content.decode()


@pytest.mark.django_db
class TestTheBalance:
    def test_sets_aside_what_is_held_and_takes_off_what_was_used(self) -> None:
        member = make_member()
        use(member, seconds=90)
        make_instance(actor=member)

        balance = by_token(member).get("/api/v1/balance").json()

        assert micros(balance["settled"]) == 100_000_000 - 62_250
        assert micros(balance["held"]) == H100_MICROS
        assert micros(balance["available"]) == 100_000_000 - 62_250 - H100_MICROS
        assert balance["available"]["display"] == "$97.45"
        assert (micros(balance["burn_per_hour"]), balance["exhaust_at"]) == (0, None)


@pytest.mark.django_db
class TestAStatement:
    def test_of_a_month_that_is_not_issued_is_a_preview_that_adds_up(self) -> None:
        member = make_member()
        instance = use(member, seconds=90)

        statement = by_token(member).get("/api/v1/statements/2026-01").json()

        assert (statement["month"], statement["issued_at"]) == ("2026-01", None)
        credit, used = statement["lines"]
        assert (credit["kind"], micros(credit["amount"])) == ("trial_credit", 100_000_000)
        assert (used["instance"], used["seconds"]) == (str(instance.pk), 90)
        assert micros(used["price_per_hour"]) == H100_MICROS
        assert micros(used["amount"]) == -62_250
        total = sum(micros(line["amount"]) for line in statement["lines"])
        assert micros(statement["opening"]) + total == micros(statement["closing"])

    def test_that_is_issued_is_listed_and_given_as_frozen(self) -> None:
        member = make_member()
        use(member, seconds=90)
        account_id = member.team.account_id
        statements.issue(account_id=account_id, month=MONTH, now=AFTER)
        client = by_token(member)

        listed = client.get("/api/v1/statements").json()
        detail = client.get("/api/v1/statements/2026-01").json()

        assert listed["next"] is listed["previous"] is None
        [summary] = listed["results"]
        assert summary == {name: detail[name] for name in summary}
        assert detail["issued_at"] == "2026-03-01T00:00:00Z"

    @pytest.mark.parametrize(
        "month", ["2025-12", "9999-12", "2026-13", "2026-1", "2026-01-01", "now", "0000-00"]
    )
    def test_of_no_month_of_the_team_is_not_there(self, month: str) -> None:
        response = by_token().get(f"/api/v1/statements/{month}")

        assert problem(response) == (404, "not_found")


@pytest.mark.django_db
class TestUsage:
    def test_is_priced_to_the_second(self) -> None:
        member = make_member()
        instance = use(member, seconds=90)

        [used] = by_token(member).get("/api/v1/usage").json()["results"]

        assert (used["instance"], used["seconds"]) == (str(instance.pk), 90)
        assert (micros(used["cost"]), used["cost"]["display"]) == (62_250, "$0.0623")
        assert used["started_at"] == "2026-01-01T12:00:00Z"
        assert used["ended_at"] == "2026-01-01T12:01:30Z"

    def test_of_a_period_is_every_interval_that_shares_a_second_with_it(self) -> None:
        member = make_member()
        for hour in (0, 1, 2):
            use(member, seconds=60, after=timedelta(hours=hour))

        def starts(since: str, until: str) -> list[str]:
            path = f"/api/v1/usage?since=2026-01-01T{since}Z&until=2026-01-01T{until}Z"
            found = by_token(member).get(path).json()["results"]
            return [used["started_at"][11:16] for used in found]

        assert starts("12:00:59", "14:00:01") == ["14:00", "13:00", "12:00"]
        assert starts("12:01:00", "14:00:00") == ["13:00"]

    def test_as_csv_is_exact_and_whole(self) -> None:
        member = make_member()
        instance = use(member, seconds=90)

        response = by_token(member).get("/api/v1/usage?format=csv")

        assert response.headers["Content-Type"] == "text/csv"
        content = b"".join(response.streaming_content).decode()  # type: ignore[attr-defined]
        heading, row = csv.reader(content.splitlines())
        assert dict(zip(heading, row, strict=True)) == {
            "instance": str(instance.pk),
            "sku": instance.plan.sku,
            "started_at": "2026-01-01T12:00:00Z",
            "ended_at": "2026-01-01T12:01:30Z",
            "seconds": "90",
            "micros_per_hour": "2490000",
            "cost_micros": "62250",
        }

    @pytest.mark.parametrize(
        "query",
        [
            "since=yesterday",
            "until=2026-13-01T00:00:00Z",
            "since=0001-01-01T00:00:00%2B23:59",
            "format=xml",
            "group_by=member",
        ],
    )
    def test_refuses_a_question_that_it_does_not_understand(self, query: str) -> None:
        assert problem(by_token().get(f"/api/v1/usage?{query}")) == (400, "invalid")

    def test_takes_as_many_queries_for_ten_intervals_as_for_one(
        self, django_assert_num_queries: Any
    ) -> None:
        member = make_member()
        for hour in range(5):
            use(member, seconds=60, after=timedelta(hours=hour))
        client = by_token(member)

        with django_assert_num_queries(3):  # token, its use, intervals
            client.get("/api/v1/usage")


@pytest.mark.django_db
class TestTheCostOfAnInstance:
    def test_lists_the_intervals_behind_the_sum(self) -> None:
        member = make_member()
        instance = use(member, seconds=90)

        cost = by_token(member).get(f"/api/v1/instances/{instance.pk}/cost").json()

        assert (micros(cost["cost"]), cost["seconds"]) == (62_250, 90)
        assert micros(cost["burn_per_hour"]) == 0
        [interval] = cost["intervals"]
        assert micros(interval["cost"]) == 62_250
        assert interval["ended_at"] == "2026-01-01T12:01:30Z"
