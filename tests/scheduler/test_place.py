from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placement.explain import sentence
from scheduler.placement.place import place
from scheduler.placement.snapshot import Assignment, Blocker, Demand, FreeNode, Shape


def demand(
    gpu_count: int = 1, *, gpu_model: str = "H100", vcpus: int = 1, memory_mib: int = 1
) -> Demand:
    return Demand(uuid4(), Shape(gpu_model, gpu_count, vcpus, memory_mib))


def node(
    node_id: int, *, gpus: int = 8, gpu_model: str = "H100", vcpus: int = 99, memory_mib: int = 99
) -> FreeNode:
    uuids = tuple(f"GPU-{node_id}-{index}" for index in range(gpus))
    return FreeNode(node_id, {gpu_model: uuids}, vcpus, memory_mib)


class TestPlace:
    def test_takes_the_node_that_is_left_with_the_fewest_free_gpus(self) -> None:
        decision = place([demand(2)], [node(1, gpus=8), node(2, gpus=3)])

        assert [a.node_id for a in decision.assignments] == [2]

    def test_breaks_a_tie_by_vcpus_and_then_by_the_node_id(self) -> None:
        nodes = [node(3, vcpus=9), node(2, vcpus=5), node(1, vcpus=5)]

        decision = place([demand(1)], nodes)

        assert [a.node_id for a in decision.assignments] == [1]

    def test_gives_the_exact_gpus(self) -> None:
        wanted = demand(2)

        decision = place([wanted], [node(1, gpus=3)])

        uuids = ("GPU-1-0", "GPU-1-1")
        assert decision.assignments == (Assignment(wanted.instance_id, wanted.shape, 1, uuids),)

    def test_never_mixes_gpu_models(self) -> None:
        decision = place([demand(gpu_model="A100")], [node(1)])

        assert [b.blocker for b in decision.blocked] == [Blocker.NO_SUCH_GPU]

    def test_serves_two_models_of_one_node(self) -> None:
        mixed = FreeNode(1, {"A100": ("GPU-a",), "H100": ("GPU-h",)}, 99, 99)

        decision = place([demand(gpu_model="A100"), demand(gpu_model="H100")], [mixed])

        assert [a.gpu_uuids for a in decision.assignments] == [("GPU-a",), ("GPU-h",)]

    def test_counts_the_vcpus_and_the_memory_of_what_it_placed(self) -> None:
        demands = [demand(vcpus=3, memory_mib=4), demand(vcpus=3, memory_mib=4)]

        decision = place(demands, [node(1, vcpus=5, memory_mib=99)])

        assert len(decision.assignments) == 1
        assert [b.blocker for b in decision.blocked] == [Blocker.CPU_OR_MEMORY]

    def test_lets_a_small_demand_overtake_one_that_fits_nowhere(self) -> None:
        large, small = demand(8), demand(1)

        decision = place([large, small], [node(1, gpus=4)])

        assert [a.instance_id for a in decision.assignments] == [small.instance_id]
        assert [b.instance_ids for b in decision.blocked] == [(large.instance_id,)]

    def test_says_that_enough_gpus_are_free_but_not_on_one_node(self) -> None:
        decision = place([demand(4)], [node(1, gpus=3), node(2, gpus=2)])

        [blocked] = decision.blocked
        assert (blocked.blocker, blocked.free, blocked.most_on_one_node) == (
            Blocker.FRAGMENTATION,
            5,
            3,
        )

    def test_explains_what_waits_by_what_is_free_in_the_end(self) -> None:
        decision = place([demand(8), demand(1)], [node(1, gpus=4)])

        assert [b.free for b in decision.blocked] == [3]

    def test_asks_once_of_each_node_for_all_that_wait_alike(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, int]] = []

        def gpus_of(node: FreeNode, model: str) -> tuple[str, ...]:
            asked.append((model, node.node_id))
            return node.gpu_uuids[model]

        monkeypatch.setattr(FreeNode, "gpus_of", gpus_of)
        full = [node(n, gpus=0) for n in range(100)]

        decision = place([demand(n % 2 + 1) for n in range(500)], full)

        assert [len(b.instance_ids) for b in decision.blocked] == [250, 250]
        # Whether either of the two shapes fits, and why it does not.
        assert len(asked) == 2 * 2 * len(full)

    @given(
        counts=st.lists(st.integers(1, 8), max_size=20),
        sizes=st.lists(st.integers(0, 8), max_size=10),
    )
    def test_loses_no_demand_and_gives_no_gpu_twice(
        self, counts: list[int], sizes: list[int]
    ) -> None:
        demands = [Demand(UUID(int=i), Shape("H100", n, 1, 1)) for i, n in enumerate(counts)]
        nodes = [node(i, gpus=size) for i, size in enumerate(sizes)]

        decision = place(demands, nodes)

        given_out = [uuid for a in decision.assignments for uuid in a.gpu_uuids]
        assert len(given_out) == len(set(given_out))
        placed = {a.instance_id for a in decision.assignments}
        waiting = {instance_id for b in decision.blocked for instance_id in b.instance_ids}
        assert placed | waiting == {d.instance_id for d in demands}
        assert not placed & waiting
        assert all(sentence(blocked) for blocked in decision.blocked)

    @given(
        counts=st.lists(st.integers(1, 8), max_size=12),
        sizes=st.lists(st.integers(0, 8), max_size=6),
    )
    def test_leaves_nothing_waiting_that_would_still_fit(
        self, counts: list[int], sizes: list[int]
    ) -> None:
        demands = [Demand(UUID(int=i), Shape("H100", n, 1, 1)) for i, n in enumerate(counts)]

        decision = place(demands, [node(i, gpus=size) for i, size in enumerate(sizes)])

        left = dict(enumerate(sizes))
        for assignment in decision.assignments:
            left[assignment.node_id] -= len(assignment.gpu_uuids)
        most = max(left.values(), default=0)
        assert all(blocked.shape.gpu_count > most for blocked in decision.blocked)


class TestSentence:
    def test_names_the_figures_that_keep_it_waiting(self) -> None:
        decision = place([demand(4)], [node(1, gpus=3), node(2, gpus=2)])

        assert sentence(decision.blocked[0]) == (
            "Needs 4 × H100 on one node; 5 are free in all, but at most 3 on the same node."
        )
