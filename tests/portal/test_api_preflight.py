"""What a launch would mean: said truly, and without doing anything."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.models import Hold
from portal.accounts.models import Member, PriorityClass, Team
from portal.accounts.roles import Role, Scope
from portal.catalog.models import Availability, Image, Plan
from portal.instances.models import Instance
from tests.factories import (
    H100_MICROS,
    NOON,
    make_image,
    make_instance,
    make_member,
    make_plan,
    make_team,
)
from tests.portal.callers import by_token, problem

PREFLIGHT = "/api/v1/preflight"
INSTANCES = "/api/v1/instances"


def launch_body(**changes: object) -> dict[str, object]:
    return {"plan": make_plan().sku, "image": make_image().slug} | changes


def preflight(member: Member, body: dict[str, object]) -> Any:
    response = by_token(member, Scope.READ).post(PREFLIGHT, body)
    assert response.status_code == 200
    return response.json()


@pytest.mark.django_db
class TestPreflight:
    def test_says_what_it_costs_and_how_long_the_credit_lasts(self) -> None:
        member = make_member(make_team(credit_micros=10 * H100_MICROS))

        card = preflight(member, launch_body())

        assert card["admitted"]
        assert card["refusal"] is None
        assert card["price_per_hour"]["amount_micros"] == H100_MICROS
        assert card["available"]["amount_micros"] == 10 * H100_MICROS
        assert card["burn_per_hour"]["amount_micros"] == 0
        assert card["runway_seconds"] == 10 * 3_600

    def test_says_what_one_may_have_and_what_there_is(self) -> None:
        member = make_member(make_team(gpu_quota=8))
        plan = make_plan()
        make_instance(actor=member, plan=make_plan(gpu_count=2, gpu_model="A100"))
        Availability.objects.create(plan=plan, free_now=3, total=8, simulated=True, updated_at=NOON)

        card = preflight(member, launch_body(plan=plan.sku))

        assert (card["gpus_in_use"], card["gpu_quota"]) == (2, 8)
        assert (card["free_now"], card["simulated"], card["starts_at_once"]) == (3, True, True)

    def test_says_where_it_would_stand_in_the_queue(self) -> None:
        member = make_member()
        urgent = make_member(make_team(priority_class=PriorityClass.CRITICAL))
        patient = make_member(make_team(priority_class=PriorityClass.BATCH))
        make_instance(actor=urgent, plan=make_plan(gpu_count=4))
        make_instance(actor=urgent, plan=make_plan(gpu_count=2, gpu_model="A100"))
        make_instance(actor=patient)

        card = preflight(member, launch_body())

        assert (card["place"], card["gpus_ahead"], card["starts_at_once"]) == (3, 4, False)

    def test_writes_nothing_and_locks_nothing(self) -> None:
        member = make_member()
        client = by_token(member)
        body = launch_body()
        client.post(PREFLIGHT, body)  # notes that the token is used, once a minute

        with CaptureQueriesContext(connection) as queries:
            client.post(PREFLIGHT, body)

        assert {query["sql"].split()[0] for query in queries} == {"SELECT"}
        assert not any(" FOR " in query["sql"] for query in queries)
        assert len(queries) <= 11
        assert not Instance.objects.exists()
        assert not Hold.objects.exists()

    def test_refuses_a_body_that_a_launch_would_not_take(self) -> None:
        response = by_token().post(PREFLIGHT, launch_body(plan="no-such-plan", gpu=1))

        assert problem(response) == (400, "invalid")


@dataclass(frozen=True)
class Refused:
    """A launch that is refused: what is asked by whom, and what happens before."""

    code: str
    team: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    name: str = "trainer"
    meanwhile: Callable[[], object] = lambda: None


REFUSED = (
    Refused("forbidden", meanwhile=lambda: Member.objects.update(role=Role.BILLING)),
    Refused("team_suspended", meanwhile=lambda: Team.objects.update(suspended_at=NOON)),
    Refused("invalid_launch", name="Not A Name"),
    Refused("plan_retired", meanwhile=lambda: Plan.objects.update(retired_at=NOON)),
    Refused("image_retired", meanwhile=lambda: Image.objects.update(retired_at=NOON)),
    Refused("quota_exceeded", team={"gpu_quota": 0}),
    Refused("not_priced", plan={"micros_per_hour": None}),
    Refused("funds_too_low", team={"credit_micros": H100_MICROS - 1}),
)


# A refusal fails the transaction that it comes in, which must not be the test's.
@pytest.mark.django_db(transaction=True)
class TestARefusal:
    @pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.code)
    def test_is_predicted_word_for_word(self, refused: Refused) -> None:
        client = by_token(make_member(make_team(**refused.team)))
        body = launch_body(plan=make_plan(**refused.plan).sku, name=refused.name)
        refused.meanwhile()

        card = client.post(PREFLIGHT, body).json()
        refusal = client.post(INSTANCES, body)

        assert problem(refusal)[1] == refused.code
        assert not card["admitted"]
        assert card["refusal"] == refusal.json()

    def test_for_want_of_funds_counts_what_is_held(self) -> None:
        member = make_member(make_team(credit_micros=2 * H100_MICROS))
        make_instance(actor=member)
        client = by_token(member)
        body = launch_body(plan=make_plan(micros_per_hour=H100_MICROS + 1).sku)

        card = client.post(PREFLIGHT, body).json()

        assert card["refusal"] == client.post(INSTANCES, body).json()
