from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.accounts import operations
from portal.accounts.models import Member, PriorityClass
from portal.accounts.roles import Role, Scope
from portal.catalog.models import Availability, Plan
from portal.instances.models import Instance
from tests.factories import (
    H100_MICROS,
    NOON,
    make_image,
    make_instance,
    make_member,
    make_plan,
    make_team,
    make_user,
)
from tests.portal.callers import ED25519, by_session, by_token, problem

INSTANCES = "/api/v1/instances"


def launch(member: Member, *, key: str | None = None, **changes: object) -> Any:
    body = {"plan": make_plan().sku, "image": make_image().slug} | changes
    headers = {"Idempotency-Key": key} if key else {}
    return by_token(member).post(INSTANCES, body, headers=headers)


@pytest.mark.django_db
class TestPlans:
    def test_say_what_an_hour_costs_and_how_many_would_start_now(self) -> None:
        plan, unpriced = make_plan(), make_plan(micros_per_hour=None)
        make_plan().__class__.objects.exclude(pk__in=[plan.pk, unpriced.pk]).update(retired_at=NOON)
        Availability.objects.create(plan=plan, free_now=3, total=8, simulated=True, updated_at=NOON)

        offered = {p["sku"]: p for p in by_token().get("/api/v1/plans").json()["results"]}

        assert set(offered) == {plan.sku, unpriced.sku}
        priced = offered[plan.sku]
        assert priced["price_per_hour"]["on_demand"] == {
            "amount_micros": 2_490_000,
            "currency": "USD",
            "display": "$2.49",
        }
        assert (priced["free_now"], priced["simulated"]) == (3, True)
        without = offered[unpriced.sku]
        assert (without["price_per_hour"]["on_demand"], without["free_now"]) == (None, 0)


@pytest.mark.django_db
class TestLaunching:
    def test_puts_an_instance_in_the_queue_as_asked(self) -> None:
        member = make_member()
        key = operations.add_ssh_key(user=member.user, name="laptop", public_key=ED25519, now=NOON)

        response = launch(
            member, name="trainer", ports=[8080], env={"A": "b"}, command=["sleep", "1"]
        )

        assert response.status_code == 201
        body = response.json()
        assert (body["state"], body["reason"], body["name"]) == ("queued", "launched", "trainer")
        assert body["price_per_hour"]["amount_micros"] == H100_MICROS
        assert body["cost"] == {"amount_micros": 0, "currency": "USD", "display": "$0.0000"}
        instance = Instance.objects.get(pk=body["id"])
        assert instance.team_id == member.team_id
        assert (instance.ports, instance.env) == ([8080], {"A": "b"})
        assert instance.command == ["sleep", "1"]
        assert instance.ssh_keys == [key.public_key]

    def test_lets_in_only_the_keys_that_are_chosen(self) -> None:
        member = make_member()
        operations.add_ssh_key(user=member.user, name="laptop", public_key=ED25519, now=NOON)

        launch(member, ssh_keys=[])

        assert Instance.objects.get().ssh_keys == []

    def test_lets_in_no_key_of_somebody_else(self) -> None:
        key = operations.add_ssh_key(user=make_user(), name="laptop", public_key=ED25519, now=NOON)

        response = launch(make_member(), ssh_keys=[key.pk])

        assert problem(response) == (400, "invalid")
        assert response.json()["errors"] == {"ssh_keys": ["You have no such key."]}

    def test_never_gives_out_what_may_be_a_secret(self) -> None:
        response = launch(make_member(), env={"TOKEN": "s3cr3t"})

        assert "s3cr3t" not in response.content.decode()

    @pytest.mark.parametrize(
        ("team", "code"),
        [
            ({"gpu_quota": 0}, "quota_exceeded"),
            ({"credit_micros": 2_489_999}, "funds_too_low"),
        ],
    )
    def test_that_is_refused_says_what_to_do_and_writes_nothing(
        self, team: dict[str, int], code: str
    ) -> None:
        response = launch(make_member(make_team(**team)))  # type: ignore[arg-type]

        assert problem(response) == (422, code)
        assert response.json()["next_step"]
        assert not Instance.objects.exists()

    def test_is_not_for_every_role(self) -> None:
        member = make_member()
        client = by_token(member)
        Member.objects.update(role=Role.BILLING)

        response = client.post(INSTANCES, {"plan": make_plan().sku, "image": make_image().slug})

        assert problem(response) == (403, "forbidden")

    def test_in_a_suspended_team_is_refused(self) -> None:
        member = make_member()
        operations.suspend_team(team=member.team, now=NOON)

        assert problem(launch(member)) == (403, "team_suspended")

    def test_of_a_retired_plan_is_refused(self) -> None:
        plan = make_plan()
        Plan.objects.update(retired_at=NOON)

        assert problem(launch(make_member(), plan=plan.sku)) == (409, "plan_retired")


@pytest.mark.django_db(transaction=True)
class TestStatementsOfALaunch:
    """BEGIN and COMMIT count. A client's first request of a minute takes one more."""

    def test_are_few_however_much_the_team_has(self, django_assert_num_queries: Any) -> None:
        member = make_member(make_team(gpu_quota=20, credit_micros=10**9))
        operations.add_ssh_key(user=member.user, name="laptop", public_key=ED25519, now=NOON)
        body = {"plan": make_plan().sku, "image": make_image().slug}
        client = by_token(member)
        for key in ("first", "second"):
            client.post(INSTANCES, body, headers={"Idempotency-Key": key})

        # Token; BEGIN, key; plan, image, SSH keys, price; SAVEPOINT, instance, event, RELEASE;
        # then, one launch of the team at a time: account, what it holds, the team; hold, reply,
        # COMMIT.
        with django_assert_num_queries(17):
            client.post(INSTANCES, body, headers={"Idempotency-Key": "third"})

    def test_are_four_when_the_answer_is_kept(self, django_assert_num_queries: Any) -> None:
        body = {"plan": make_plan().sku, "image": make_image().slug}
        client = by_token()
        client.post(INSTANCES, body, headers={"Idempotency-Key": "once"})

        with django_assert_num_queries(4):  # token; BEGIN, key, COMMIT
            client.post(INSTANCES, body, headers={"Idempotency-Key": "once"})


@pytest.mark.django_db
class TestNamingATeam:
    def test_that_one_acts_for_is_allowed(self) -> None:
        member = make_member()

        assert launch(member, team=member.team_id).status_code == 201

    def test_of_strangers_is_like_naming_none_that_exists(self) -> None:
        assert problem(launch(make_member(), team=make_team().pk)) == (404, "not_found")
        assert not Instance.objects.exists()

    def test_that_is_ones_own_too_does_not_widen_a_token(self) -> None:
        member = make_member()
        other = Member.objects.create(user=member.user, team=make_team(), role=Role.OWNER)

        assert problem(launch(member, team=other.team_id)) == (404, "not_found")

    def test_that_is_ones_own_too_is_a_sessions_to_choose(self) -> None:
        member = make_member()
        other = Member.objects.create(user=member.user, team=make_team(), role=Role.OWNER)
        body = {"plan": make_plan().sku, "image": make_image().slug, "team": other.team_id}

        response = by_session(member).post(INSTANCES, body)

        assert response.status_code == 201
        assert response.json()["team"] == other.team_id


@pytest.mark.django_db
class TestALaunchKey:
    def test_is_the_idempotency_key(self) -> None:
        launch(make_member(), key="once")

        assert Instance.objects.get().launch_key == "once"

    def test_gets_the_same_instance_when_replies_are_forgotten(self) -> None:
        member = make_member()
        body = {"plan": make_plan().sku, "image": make_image().slug}
        first = launch(member, key="once", **body)
        operations.forget_replies(now=NOON + timedelta(days=10_000))

        second = launch(member, key="once", **body)

        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["id"] == second.json()["id"]

    def test_of_a_colleague_gives_nobody_their_instance(self) -> None:
        member = make_member()
        body = {"plan": make_plan().sku, "image": make_image().slug}
        launch(member, key="once", **body)

        response = launch(make_member(member.team), key="once", **body)

        assert problem(response) == (409, "idempotency_key_reused")


@pytest.mark.django_db
class TestSeeing:
    @pytest.mark.parametrize("path", ["", "/events", "/cost"])
    def test_another_teams_instance_is_not_there(self, path: str) -> None:
        instance = make_instance()

        assert problem(by_token().get(f"{INSTANCES}/{instance.pk}{path}")) == (404, "not_found")

    @pytest.mark.parametrize("verb", ["stop", "start", "terminate"])
    def test_neither_to_act_upon(self, verb: str) -> None:
        instance = make_instance()

        response = by_token().post(f"{INSTANCES}/{instance.pk}/{verb}")

        assert problem(response) == (404, "not_found")

    def test_lists_the_teams_own_alone_the_newest_first(self) -> None:
        member = make_member()
        older = make_instance(actor=member, now=NOON)
        newer = make_instance(actor=member, now=NOON + timedelta(hours=1))
        make_instance()

        listed = by_token(member).get(INSTANCES).json()["results"]

        assert [entry["id"] for entry in listed] == [str(newer.pk), str(older.pk)]

    def test_costs_as_many_queries_for_ten_as_for_one(self) -> None:
        member = make_member(make_team(gpu_quota=20, credit_micros=10**9))
        client = by_token(member)
        client.get(INSTANCES)  # notes that the token is used, once a minute
        counts = []
        for more in (1, 9):
            for _ in range(more):
                make_instance(actor=member)
            with CaptureQueriesContext(
                connection,
            ) as queries:
                client.get(INSTANCES)
            counts.append(len(queries))

        assert counts[0] == counts[1] <= 4


@pytest.mark.django_db
class TestOperating:
    def test_stops_starts_and_terminates(self) -> None:
        member = make_member()
        instance = make_instance(actor=member)
        client = by_token(member)
        states = []

        for verb in ("stop", "start", "terminate"):
            response = client.post(f"{INSTANCES}/{instance.pk}/{verb}")
            states.append((response.status_code, response.json()["state"]))

        assert states == [(202, "stopped"), (202, "queued"), (202, "terminated")]

    def test_what_has_ended_is_a_conflict(self) -> None:
        member = make_member()
        instance = make_instance(actor=member)
        client = by_token(member)
        client.post(f"{INSTANCES}/{instance.pk}/terminate")

        assert problem(client.post(f"{INSTANCES}/{instance.pk}/stop")) == (409, "already_ended")
        assert problem(client.post(f"{INSTANCES}/{instance.pk}/start"))[0] == 409

    def test_is_not_for_every_role(self) -> None:
        member = make_member()
        instance = make_instance(actor=member)
        client = by_token(member)
        Member.objects.update(role=Role.BILLING)

        assert problem(client.post(f"{INSTANCES}/{instance.pk}/stop")) == (403, "forbidden")


@pytest.mark.django_db
class TestEvents:
    def test_tell_who_did_what_but_of_operators_no_name(self) -> None:
        member = make_member()
        instance = make_instance(actor=member)
        by_token(member).post(f"{INSTANCES}/{instance.pk}/stop")
        instance.events.filter(state="stopped").update(actor=make_user(staff=True))

        told = by_token(member).get(f"{INSTANCES}/{instance.pk}/events").json()["results"]

        assert [(event["state"], event["actor"]) for event in told] == [
            ("queued", member.user.email),
            ("stopped", "operator"),
        ]
        assert all(event["explanation"] for event in told)


@pytest.mark.django_db
class TestCost:
    def test_of_what_never_ran_is_nought(self) -> None:
        member = make_member()
        instance = make_instance(actor=member)

        cost = by_token(member).get(f"{INSTANCES}/{instance.pk}/cost").json()

        assert (cost["cost"]["amount_micros"], cost["seconds"]) == (0, 0)
        assert cost["intervals"] == []


@pytest.mark.django_db
class TestTheQueue:
    def test_shows_ones_own_places_and_of_others_only_their_size(self) -> None:
        member = make_member(make_team(gpu_quota=8))
        urgent = make_member(make_team(priority_class=PriorityClass.CRITICAL))
        mine = make_instance(actor=member, plan=make_plan(gpu_count=1))
        make_instance(actor=urgent, plan=make_plan(gpu_count=4), now=NOON + timedelta(hours=1))
        make_instance(actor=urgent, plan=make_plan(gpu_count=2, gpu_model="A100"))

        response = by_token(member).get("/api/v1/queue")

        queue = response.json()
        assert (queue["waiting"], queue["gpus_wanted"]) == (3, 7)
        assert [place["place"] for place in queue["results"]] == [1, 2, 3]
        own = queue["results"][2]
        assert own["instance"] == {"id": str(mine.pk), "name": mine.name}
        assert own["gpus_ahead"] == 4
        assert [place["instance"] for place in queue["results"][:2]] == [None, None]
        assert urgent.team.name not in response.content.decode()

    def test_takes_as_many_queries_for_a_long_queue(self, django_assert_num_queries: Any) -> None:
        member = make_member(make_team(gpu_quota=20, credit_micros=10**9))
        for _ in range(5):
            make_instance(actor=member)
        client = by_token(member, Scope.READ)

        with django_assert_num_queries(3):  # token, its use, queue
            client.get("/api/v1/queue")
