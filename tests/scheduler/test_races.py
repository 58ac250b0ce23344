"""What happens at once: eight threads, each with its own connection."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event, Thread

import pytest
from django.conf import settings
from django.db import IntegrityError, connection, transaction

from agents.protocol import EnrollRequest
from portal.accounts.operations import suspend_team
from portal.catalog.models import Plan
from portal.errors import DomainError
from portal.instances.models import Instance, Phase, State
from portal.instances.operations import ending, reports
from portal.instances.operations.admission import LaunchRequest, QuotaExceeded, launch
from portal.instances.operations.reports import Progress
from scheduler import cycle, fleet, leases
from scheduler.capacity import shape_of
from scheduler.models import Allocation, Gpu, Lease, Node
from scheduler.placement.snapshot import Assignment
from tests.factories import (
    NOON,
    make_image,
    make_instance,
    make_member,
    make_node,
    make_plan,
    make_team,
)
from tests.nodes import enroll_request
from tests.races import at_once

pytestmark = pytest.mark.django_db(transaction=True)


class TestCyclesAtOnce:
    def test_give_each_gpu_once(self) -> None:
        make_node(gpus=3)
        plan = make_plan()
        for _ in range(5):
            make_instance(plan=plan)

        placed = sum(at_once(lambda: cycle.run(now=NOON)))

        assert placed == 3
        assert Allocation.objects.filter(released_at=None).count() == 3
        assert Instance.objects.filter(state=State.QUEUED).count() == 2

    def test_wait_for_each_other_but_not_for_one_that_hangs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cycle, "ALONE_WITHIN", timedelta(seconds=1))
        make_node(gpus=1)
        make_instance()
        began, over = Event(), Event()

        def hang() -> None:
            with cycle.alone():
                began.set()
                over.wait(timeout=20)
            connection.close()

        hanging = Thread(target=hang)
        hanging.start()
        began.wait(timeout=10)
        with cycle.alone():
            placed = cycle.run(now=NOON)
        over.set()
        hanging.join()

        assert placed == 1

    def test_never_give_out_more_vcpus_than_a_node_has(self) -> None:
        """Fails without the node's lock: no constraint knows of vCPUs."""
        make_node(gpus=8, vcpus=3)
        plan = make_plan()
        assignments = iter([self.planned(plan) for _ in range(8)])

        at_once(lambda: cycle.commit([next(assignments)], now=NOON))

        assert Lease.objects.count() == 3

    def test_rely_on_the_constraint_where_code_and_lock_fail(self, broken_cycle: None) -> None:
        """Every commit believes the one GPU free, and waits for none: the database refuses."""
        self.eight_commits_of_one_gpu()

        assert Allocation.objects.filter(released_at=None).count() == 1
        assert Lease.objects.count() == 1

    def test_would_give_a_gpu_twice_without_the_constraint(self, broken_cycle: None) -> None:
        """The proof that the test above can fail."""
        [constraint] = [
            c for c in Allocation._meta.constraints if c.name == "gpu_has_one_live_allocation"
        ]
        with connection.schema_editor() as editor:
            editor.remove_constraint(Allocation, constraint)
        try:
            self.eight_commits_of_one_gpu()

            assert Allocation.objects.filter(released_at=None).count() == 8
        finally:
            Allocation.objects.all().delete()
            with connection.schema_editor() as editor:
                editor.add_constraint(Allocation, constraint)

    @pytest.fixture
    def broken_cycle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        all_of_them = Gpu.objects.values_list("uuid", "pk")
        monkeypatch.setattr(cycle, "_FREE_GPUS", lambda **_: list(all_of_them.all()))
        monkeypatch.setattr(cycle, "lock_node", lambda node_id: Node.objects.get(pk=node_id))

    def planned(self, plan: Plan) -> Assignment:
        """A plan for a new instance, made while nothing is taken yet."""
        gpu = Gpu.objects.exclude(uuid__in=self.taken).first()
        assert gpu is not None
        self.taken.append(gpu.uuid)
        return assignment_of(gpu, plan)

    @pytest.fixture(autouse=True)
    def nothing_taken(self) -> None:
        self.taken: list[str] = []

    def eight_commits_of_one_gpu(self) -> None:
        gpu = make_node(gpus=1).gpus.get()
        plan = make_plan()
        assignments = iter([assignment_of(gpu, plan) for _ in range(8)])
        at_once(lambda: cycle.commit([next(assignments)], now=NOON))


def assignment_of(gpu: Gpu, plan: Plan) -> Assignment:
    """The decision to start a new instance of `plan` on `gpu`."""
    return Assignment(make_instance(plan=plan).pk, shape_of(plan), gpu.node_id, (gpu.uuid,))


class TestBatchesAtOnce:
    """Cycles that commit what they gave to one node together."""

    def test_give_each_gpu_once_whatever_each_planned(self) -> None:
        gpus = list(make_node(gpus=4).gpus.all())
        plan = make_plan()
        batches = iter([[assignment_of(gpu, plan) for gpu in gpus] for _ in range(8)])

        placed = sum(at_once(lambda: cycle.commit(next(batches), now=NOON)))

        assert placed == 4
        assert Allocation.objects.filter(released_at=None).count() == 4
        assert Instance.objects.filter(state=State.STARTING).count() == 4

    def test_give_each_instance_once_in_whatever_order_each_planned(self) -> None:
        plan = make_plan()
        instance_ids = [make_instance(plan=plan).pk for _ in range(8)]
        batches = []
        for turn in range(8):
            gpus = make_node(gpus=8).gpus.all()
            turned = instance_ids[turn:] + instance_ids[:turn]
            batches.append(
                [
                    Assignment(instance_id, shape_of(plan), gpu.node_id, (gpu.uuid,))
                    for instance_id, gpu in zip(turned, gpus, strict=True)
                ]
            )
        turns = iter(batches)

        placed = sum(at_once(lambda: cycle.commit(next(turns), now=NOON)))

        assert placed == 8
        assert Lease.objects.filter(ended_at=None).count() == 8


class TestSentences:
    def test_wait_for_nobody_who_moves_an_instance(self) -> None:
        plan = make_plan()
        moving, waiting = make_instance(plan=plan), make_instance(plan=plan)
        locked, over = Event(), Event()

        def hold() -> None:
            with transaction.atomic():
                Instance.objects.select_for_update(no_key=True).get(pk=moving.pk)
                locked.set()
                over.wait(timeout=20)
            connection.close()

        holding = Thread(target=hold)
        holding.start()
        locked.wait(timeout=10)
        cycle.run(now=NOON)
        was_held = holding.is_alive()
        over.set()
        holding.join()

        assert was_held
        said = Instance.objects.filter(explanation__startswith="No node").values_list("pk")
        assert list(said) == [(waiting.pk,)]


class TestLaunchesAtOnce:
    def test_give_the_last_gpu_of_a_quota_once(self) -> None:
        actor, plan, image = make_member(make_team(gpu_quota=1)), make_plan(), make_image()
        keys = iter(range(8))

        def try_to_launch() -> bool:
            request = LaunchRequest(plan=plan, image=image)
            try:
                launch(actor=actor, request=request, launch_key=str(next(keys)), now=NOON)
            except QuotaExceeded:
                return False
            return True

        assert sum(at_once(try_to_launch)) == 1
        assert Instance.objects.count() == 1

    def test_with_one_key_make_one_instance(self) -> None:
        actor, plan, image = make_member(), make_plan(), make_image()

        def launch_once() -> bool:
            request = LaunchRequest(plan=plan, image=image)
            return launch(actor=actor, request=request, launch_key="one", now=NOON)[1]

        assert sum(at_once(launch_once)) == 1
        assert Instance.objects.count() == 1

    def test_never_hold_more_than_there_is(self) -> None:
        team = make_team(credit_micros=3 * 2_490_000, gpu_quota=99)
        actor, plan, image = make_member(team), make_plan(), make_image()
        keys = iter(range(8))

        def try_to_launch() -> bool:
            request = LaunchRequest(plan=plan, image=image)
            try:
                launch(actor=actor, request=request, launch_key=str(next(keys)), now=NOON)
            except DomainError:
                return False
            return True

        assert sum(at_once(try_to_launch)) == 3

    def test_are_all_found_by_a_suspension_that_follows(self) -> None:
        actor, plan, image = make_member(), make_plan(), make_image()
        admitted, over = Event(), Event()

        def launch_slowly() -> None:
            with transaction.atomic():
                request = LaunchRequest(plan=plan, image=image)
                launch(actor=actor, request=request, launch_key="one", now=NOON)
                admitted.set()
                over.wait(timeout=0.5)  # as long as the suspension needs to overtake it
            connection.close()

        launching = Thread(target=launch_slowly)
        launching.start()
        admitted.wait(timeout=10)
        suspend_team(team=actor.team, now=NOON)
        stopped = ending.stop_team(team=actor.team, by=actor.user, now=NOON)
        over.set()
        launching.join()

        assert stopped == 1
        assert Instance.objects.get().state == State.STOPPED


class TestMovesAtOnce:
    def test_start_one_meter(self) -> None:
        make_node()
        instance = make_instance()
        cycle.run(now=NOON)

        moved = at_once(lambda: reports.record_started({instance.pk: {}}, now=NOON))

        assert sum(map(len, moved)) == 1

    def test_stop_and_ready_leave_no_meter_open(self) -> None:
        actor = make_member()
        make_node()
        instance = make_instance(actor=actor)
        cycle.run(now=NOON)
        turns = iter(range(8))

        def stop_or_start() -> None:
            if next(turns) % 2:
                ending.stop(actor=actor, instance=instance, now=NOON)
            else:
                reports.record_started({instance.pk: {}}, now=NOON)

        at_once(stop_or_start)

        instance.refresh_from_db()
        assert instance.state == State.STOPPING
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM billing_usageinterval WHERE ended_at IS NULL")
            assert cursor.fetchone() == (0,)

    def test_end_a_lease_once(self) -> None:
        make_node()
        make_instance()
        cycle.run(now=NOON)
        lease = Lease.objects.get()

        assert sum(at_once(lambda: leases.end([lease.pk], now=NOON))) == 1


class TestWhatWaitsForNobody:
    """Two syncs of one node at once say things of the same rows, in whatever order."""

    def test_progress_passes_over_what_another_moves(self) -> None:
        held, free = self.two_that_start()
        told = {pk: Progress(Phase.PULLING, 50) for pk in (held.pk, free.pk)}

        with transaction.atomic():
            Instance.objects.select_for_update().get(pk=held.pk)
            in_time(lambda: reports.record_progress(told))

        percents = dict(Instance.objects.values_list("pk", "phase_percent"))
        assert percents == {held.pk: None, free.pk: 50}

    def test_a_renewal_passes_over_what_another_ends(self) -> None:
        self.two_that_start()
        node = Node.objects.get()
        held, free = Lease.objects.order_by("pk")
        later = NOON + timedelta(seconds=60)

        with transaction.atomic():
            Lease.objects.select_for_update().get(pk=held.pk)
            in_time(lambda: leases.renew(leases.live_leases(node), now=later))

        expiries = dict(Lease.objects.values_list("pk", "expires_at"))
        assert expiries[held.pk] == held.expires_at
        assert expiries[free.pk] == later + settings.LEASE_DURATION

    def test_a_start_whose_node_came_back_meanwhile_is_kept(self) -> None:
        """The tick saw the lease unrenewed; a sync renewed it before the tick acted."""
        self.two_that_start()
        late = NOON + settings.LEASE_DURATION + 2 * leases.FENCE_MARGIN
        [seen, _] = leases._unrenewed_starts(late)
        Lease.objects.filter(pk=seen.pk).update(expires_at=late + settings.LEASE_DURATION)

        assert not leases._expire_start(seen, now=late)

        assert Lease.objects.get(pk=seen.pk).ended_at is None

    def two_that_start(self) -> list[Instance]:
        make_node(gpus=2)
        actor = make_member()
        instances = [make_instance(actor=actor) for _ in range(2)]
        assert cycle.run(now=NOON) == 2
        return instances


def in_time(call: Callable[[], object]) -> None:
    """Run `call` on a connection of its own. Fails where it waits for ours."""

    def run() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '2s'")
            call()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


class TestJoinTokensAtOnce:
    def test_let_one_machine_in(self) -> None:
        _, secret = fleet.create_join_token(by=None, now=NOON)
        names = iter(range(8))

        def try_to_join() -> bool:
            body = enroll_request(secret, f"node-{next(names)}")
            try:
                fleet.enroll(EnrollRequest.from_json(body), now=NOON)
            except fleet.JoinTokenRefused:
                return False
            return True

        assert sum(at_once(try_to_join)) == 1


class TestTheDatabase:
    def test_refuses_a_second_live_lease_of_an_instance(self) -> None:
        node = make_node()
        make_instance()
        cycle.run(now=NOON)
        first = Lease.objects.get()

        with pytest.raises(IntegrityError), transaction.atomic():
            Lease.objects.create(
                instance=first.instance,
                node=node,
                generation=2,
                started_at=NOON,
                expires_at=NOON,
            )
