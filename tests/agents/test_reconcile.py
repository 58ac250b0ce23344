"""What an agent decides, for every mixture of orders and facts."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.facts import HAS_CONTAINER, Fact
from agents.protocol import Order, Phase, Want
from agents.reconcile import Action, Adopt, Gone, Lease, Start, Stop, plan
from tests.agents.orders import fact, gone, lease, running, spec

GPU = "GPU-1"


class TestPlan:
    def test_starts_what_is_ordered_and_absent(self) -> None:
        order = running()

        assert plan([lease(order)], [], now=0.0) == [Start(order)]

    def test_leaves_alone_what_is_as_ordered(self) -> None:
        order = running()
        seen = fact(spec_digest=spec().digest())

        assert plan([lease(order)], [seen], now=0.0) == []

    def test_removes_nothing_that_no_order_speaks_of(self) -> None:
        assert plan([], [fact(), fact("i2", phase=Phase.EXITED)], now=1e9) == []

    def test_stops_with_the_grace_of_the_order(self) -> None:
        [stop] = plan([lease(gone(grace_seconds=30.0))], [fact()], now=0.0)

        assert stop == Stop("i1", 1, 30.0, "ordered")

    def test_says_gone_when_there_is_nothing_left_to_stop(self) -> None:
        [action] = plan([lease(gone())], [], now=0.0)

        assert isinstance(action, Gone)

    def test_says_gone_once_a_failed_start_is_known(self) -> None:
        [action] = plan([lease(gone())], [fact(phase=Phase.FAILED)], now=0.0)

        assert isinstance(action, Gone)

    def test_does_not_stop_twice(self) -> None:
        assert plan([lease(gone())], [fact(phase=Phase.STOPPING)], now=0.0) == []

    def test_cancels_a_start_that_is_not_wanted_any_more(self) -> None:
        [action] = plan([lease(gone())], [fact(phase=Phase.PULLING)], now=0.0)

        assert isinstance(action, Stop)

    def test_starts_nothing_that_has_run_before(self) -> None:
        [action] = plan([lease(running(may_start=False, keeps_running=True))], [], now=0.0)

        assert action == Gone("i1", 1, "its container has disappeared")

    def test_does_not_start_again_what_ended_or_failed(self) -> None:
        for phase in (Phase.EXITED, Phase.FAILED, Phase.GONE):
            assert plan([lease(running())], [fact(phase=phase)], now=0.0) == []


class TestGenerations:
    def test_an_older_container_goes_before_a_newer_one_starts(self) -> None:
        new = lease(running(generation=2))

        assert plan([new], [fact(generation=1)], now=0.0) == [
            Stop("i1", 1, 10.0, "generation 2 replaces it")
        ]
        assert plan([new], [fact(generation=1, phase=Phase.STOPPING)], now=0.0) == []
        assert plan([new], [fact(generation=1, phase=Phase.GONE)], now=0.0) == [Start(new.order)]

    def test_an_older_order_starts_nothing_beside_a_newer_container(self) -> None:
        [action] = plan([lease(running(generation=1))], [fact(generation=2)], now=0.0)

        assert action == Gone("i1", 1, "a newer generation is known")

    def test_an_order_to_remove_ends_older_ones_too(self) -> None:
        actions = plan([lease(gone(generation=3))], [fact(generation=1)], now=0.0)

        assert [type(action) for action in actions] == [Stop, Gone]

    def test_an_order_to_remove_leaves_a_newer_container_alone(self) -> None:
        [action] = plan([lease(gone(generation=1))], [fact(generation=2)], now=0.0)

        assert action == Gone("i1", 1, "nothing was left to remove")

    def test_a_late_reply_does_not_revive_what_was_reported_gone(self) -> None:
        late = lease(running(generation=4))

        [action] = plan([late], [], now=0.0, gone_up_to={"i1": 4})

        assert isinstance(action, Gone)
        assert plan([late], [], now=0.0, gone_up_to={"i1": 3}) == [Start(late.order)]


class TestTheEndOfALease:
    def test_removes_a_container_that_is_still_starting(self) -> None:
        order = lease(running(), expires_at=100.0)
        seen = [fact(phase=Phase.PROBING)]

        assert plan([order], seen, now=99.9) == []
        assert plan([order], seen, now=100.0) == [Stop("i1", 1, 10.0, "its lease has ended")]

    def test_keeps_what_runs_and_was_promised_to_keep_running(self) -> None:
        order = lease(running(may_start=False, keeps_running=True), expires_at=100.0)

        assert plan([order], [fact()], now=1e9) == []
        [action] = plan([order], [fact(phase=Phase.CREATING)], now=1e9)
        assert isinstance(action, Stop)

    def test_stops_what_runs_without_such_a_promise(self) -> None:
        order = lease(running(may_start=False), expires_at=100.0)

        [action] = plan([order], [fact()], now=100.0)

        assert isinstance(action, Stop)

    def test_keeps_an_exit_code_that_nobody_has_read(self) -> None:
        order = lease(running(), expires_at=100.0)

        assert plan([order], [fact(phase=Phase.EXITED, exit_code=3)], now=1e9) == []

    def test_starts_nothing(self) -> None:
        [action] = plan([lease(running(), expires_at=100.0)], [], now=100.0)

        assert isinstance(action, Gone)


class TestGpus:
    def test_a_start_waits_for_the_gpus_of_another_container(self) -> None:
        order = running("i2", spec=spec(gpu_uuids=(GPU,)))
        held = fact(gpu_uuids=(GPU,), phase=Phase.STOPPING)

        assert plan([lease(order)], [held], now=0.0) == []
        free = dataclasses.replace(held, phase=Phase.GONE)
        assert plan([lease(order)], [free], now=0.0) == [Start(order)]

    def test_of_an_ended_container_are_free(self) -> None:
        order = running("i2", spec=spec(gpu_uuids=(GPU,)))
        ended = fact(gpu_uuids=(GPU,), phase=Phase.EXITED)

        assert plan([lease(order)], [ended], now=0.0) == [Start(order)]

    def test_go_to_one_of_two_orders_that_want_the_same(self) -> None:
        orders = [running(name, spec=spec(gpu_uuids=(GPU,))) for name in ("i1", "i2")]

        assert plan([lease(order) for order in orders], [], now=0.0) == [Start(orders[0])]


class TestASpecThatHasChanged:
    def test_makes_a_container_that_is_not_ready_yet_anew(self) -> None:
        seen = fact(phase=Phase.PROBING, spec_digest="another")

        [action] = plan([lease(running())], [seen], now=0.0)

        assert action == Stop("i1", 1, 10.0, "its spec has changed", is_final=False)

    def test_leaves_what_runs_alone(self) -> None:
        order = running(may_start=False, keeps_running=True)

        assert plan([lease(order)], [fact(spec_digest="another")], now=0.0) == []


class TestAContainerThatIsFound:
    def test_is_adopted_when_it_is_ordered(self) -> None:
        order = running()
        found = fact(phase=Phase.PROBING, found=True, spec_digest=spec().digest())

        assert plan([lease(order)], [found], now=0.0) == [Adopt(order)]

    def test_is_left_alone_until_an_order_speaks_of_it(self) -> None:
        assert plan([], [fact(phase=Phase.PROBING, found=True)], now=0.0) == []

    def test_that_never_started_is_taken_up_or_removed_as_the_order_allows(self) -> None:
        half_made = fact(phase=Phase.CREATING, found=True)

        assert plan([lease(running())], [half_made], now=0.0) == [Adopt(running())]
        [action] = plan([lease(running(may_start=False))], [half_made], now=0.0)
        assert action == Stop("i1", 1, 10.0, "its start was broken off")


# --- whatever the orders and whatever the facts ---

INSTANCES, GPUS = ("i1", "i2", "i3"), ("GPU-1", "GPU-2")
keys = st.tuples(st.sampled_from(INSTANCES), st.integers(1, 3))
gpu_sets = st.sets(st.sampled_from(GPUS), max_size=2).map(lambda found: tuple(sorted(found)))


@st.composite
def leases(draw: st.DrawFn) -> list[Lease]:
    drawn = []
    for instance, generation in draw(st.sets(keys, max_size=6)):
        order = Order(
            instance,
            generation,
            draw(st.sampled_from(Want)),
            0.0,
            may_start=draw(st.booleans()),
            keeps_running=draw(st.booleans()),
            spec=spec(gpu_uuids=draw(gpu_sets)),
        )
        drawn.append(Lease(order, expires_at=draw(st.sampled_from([0.0, 50.0, 200.0]))))
    return drawn


@st.composite
def worlds(draw: st.DrawFn) -> list[Fact]:
    """Nodes as they can be: no GPU in two containers, no instance with two live ones."""
    facts: list[Fact] = []
    for instance, generation in draw(st.sets(keys, max_size=6)):
        seen = Fact(
            instance,
            generation,
            draw(st.sampled_from(Phase)),
            spec_digest=draw(st.sampled_from(["", "another", spec().digest()])),
            gpu_uuids=draw(gpu_sets),
            found=draw(st.booleans()),
        )
        clashes = any(
            seen.held_gpus & other.held_gpus
            or (seen.has_container and other.has_container and other.instance == instance)
            for other in facts
        )
        if not clashes:
            facts.append(seen)
    return facts


def carried_out(facts: list[Fact], actions: list[Action]) -> list[Fact]:
    """The facts when every action has come to its end."""
    after = {fact.key: fact for fact in facts}
    for action in actions:
        match action:
            case Stop(instance, generation, _, _, is_final):
                del after[instance, generation]
                if is_final:
                    after[instance, generation] = Fact(instance, generation, Phase.GONE)
            case Gone(instance, generation):
                after[instance, generation] = Fact(instance, generation, Phase.GONE)
            case Start(order) | Adopt(order):
                assert order.spec is not None
                after[order.instance, order.generation] = Fact(
                    order.instance,
                    order.generation,
                    Phase.RUNNING,
                    spec_digest=order.spec.digest(),
                    gpu_uuids=order.spec.gpu_uuids,
                )
    stopping = {key: fact for key, fact in after.items() if fact.phase == Phase.STOPPING}
    for key in stopping:
        after[key] = Fact(*key, Phase.GONE)
    return list(after.values())


class TestWhateverIsOrdered:
    @given(leases(), worlds())
    def test_stops_come_first(self, orders: list[Lease], facts: list[Fact]) -> None:
        actions = plan(orders, facts, now=100.0)

        places = [isinstance(action, Stop) for action in actions]
        assert places == sorted(places, reverse=True)

    @given(leases(), worlds())
    def test_no_gpu_is_ever_given_twice(self, orders: list[Lease], facts: list[Fact]) -> None:
        starts = [action for action in plan(orders, facts, now=100.0) if isinstance(action, Start)]

        held = [uuid for seen in facts for uuid in seen.held_gpus]
        given_out = [
            uuid for start in starts if start.order.spec for uuid in start.order.spec.gpu_uuids
        ]
        assert len(set(given_out)) == len(given_out)
        assert not set(given_out) & set(held)

    @given(leases(), worlds())
    def test_no_instance_ever_has_two_containers(
        self, orders: list[Lease], facts: list[Fact]
    ) -> None:
        starts = [action for action in plan(orders, facts, now=100.0) if isinstance(action, Start)]

        begun = [start.order.instance for start in starts]
        live = {seen.instance for seen in facts if seen.phase in HAS_CONTAINER}
        assert len(set(begun)) == len(begun)
        assert not set(begun) & live

    @given(leases(), worlds())
    def test_nothing_is_removed_that_no_order_of_its_generation_or_later_speaks_of(
        self, orders: list[Lease], facts: list[Fact]
    ) -> None:
        for action in plan(orders, facts, now=100.0):
            if isinstance(action, Stop):
                assert any(
                    item.order.instance == action.instance
                    and item.order.generation >= action.generation
                    for item in orders
                )

    @given(leases(), worlds())
    def test_nothing_starts_that_may_not(self, orders: list[Lease], facts: list[Fact]) -> None:
        for action in plan(orders, facts, now=100.0):
            if isinstance(action, Start):
                [item] = [item for item in orders if item.order == action.order]
                assert action.order.may_start
                assert action.order.want == Want.RUNNING
                assert item.expires_at > 100.0

    @given(leases(), worlds())
    def test_it_comes_to_rest(self, orders: list[Lease], facts: list[Fact]) -> None:
        for _ in range(5):
            facts = carried_out(facts, plan(orders, facts, now=100.0))

        assert plan(orders, facts, now=100.0) == []


class TestThePlanOfASettledNode:
    @pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.PULLING, Phase.EXITED])
    def test_is_empty(self, phase: Phase) -> None:
        orders = [lease(running(name)) for name in INSTANCES]
        facts = [fact(name, phase=phase, spec_digest=spec().digest()) for name in INSTANCES]

        assert plan(orders, facts, now=0.0) == []
