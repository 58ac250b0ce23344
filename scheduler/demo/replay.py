"""The story, lived through once by the real operations, each told its own moment as `now`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter

from django.db import transaction

from billing import backdating, charging, statements
from billing.rating.intervals import month_bounds, month_of
from billing.rating.money import MICROS
from portal.accounts import goodwill
from portal.accounts import operations as accounts
from portal.accounts.models import Member, Team, User
from portal.accounts.roles import Scope
from portal.catalog.models import Image, Plan
from portal.errors import Conflict
from portal.instances.models import Instance
from portal.instances.operations import admission, ending
from portal.instances.operations.admission import LaunchRequest
from scheduler import capacity, cycle, fleet, leases
from scheduler.demo.machines import StoryNode
from scheduler.demo.story import (
    GRANTS_USD,
    LAUNCHES,
    LAUNCHES_IMAGE,
    LOST_MACHINE,
    LOST_WORK,
    MACHINES,
    NEIGHBOURS,
    QUOTA_GPUS,
    US,
    WORKS,
    Ending,
    Launch,
    Work,
)
from scheduler.models import Lease
from scheduler.placement.place import place
from scheduler.placement.snapshot import Demand

KEY = "demo-data"
DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)
# At least one month of the story is over, so that there is a statement.
AT_LEAST = 35 * DAY
# When nodes report what goes on and use is charged; how often that is changes no total.
CHARGE_EVERY, CHARGE_FIRST = DAY, 2 * HOUR + 31 * SECOND
# All of the story's machines have ended their work by then.
QUIET_BEFORE_END = 2 * HOUR
LOST_BEFORE_END = 30 * HOUR
GIVEN_UP_AFTER = 24 * HOUR
EXIT_CODES = {Ending.FINISHED: 0, Ending.OUT_OF_MEMORY: 137}
# Its private half is nobody's: 32 bytes that count from 0 to 31.
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


class AlreadyTold(Conflict):
    code = "already_told"


class TooOld(Conflict):
    code = "too_old"


@dataclass(frozen=True)
class Told:
    """What the story left behind."""

    instances: int
    statements: int
    began_at: datetime


@dataclass
class Replay:
    """One telling of the story, which ends at `now`. `us` is the member whose pages are filled."""

    us: Member
    operator: User
    now: datetime
    members: dict[str, Member] = field(default_factory=dict)
    nodes: dict[str, StoryNode] = field(default_factory=dict)
    # Of each work, the instance of its last run.
    latest: dict[Work, Instance] = field(default_factory=dict)
    launches: int = 0

    @property
    def began_at(self) -> datetime:
        start, _ = month_bounds(month_of(self.now - AT_LEAST))
        return start

    @transaction.atomic
    def tell(self) -> Told:
        """All of it or nothing, in one transaction: the ticks of a running system see no half.

        Raises AlreadyTold, TooOld where a statement stands in the way, or what an operation
        raises.
        """
        if Instance.objects.filter(launch_key__startswith=f"{KEY}:").exists():
            raise AlreadyTold("The demo data is there already.")
        if statements.issued(account_id=self.us.team.account_id):
            raise TooOld("This team has statements: its past is written, and stays as it is.")
        backdating.extend(back_to=self.began_at)
        self._people()
        for machine in MACHINES:
            self.nodes[machine.name] = StoryNode(machine, operator=self.operator, at=self.began_at)
        for at, act in sorted(self._acts(), key=itemgetter(0)):
            act(at)
        self._end()
        return Told(
            instances=self.launches,
            statements=len(statements.issued(account_id=self.us.team.account_id)),
            began_at=self.began_at,
        )

    def _people(self) -> None:
        self.members[US] = self.us
        for team, email in NEIGHBOURS.items():
            owner = User.objects.create_user(email)
            accounts.create_team(owner=owner, name=team, now=self.began_at)
            self.members[team] = Member.objects.of_user(owner.pk).get()
        # As old as its story: its statements are asked for from its first month on.
        Team.objects.filter(pk=self.us.team.pk).update(created_at=self.began_at)
        for member in self.members.values():
            accounts.set_quota(team=member.team, gpu_quota=max(QUOTA_GPUS, member.team.gpu_quota))
        if not self.us.user.ssh_keys.exists():
            accounts.add_ssh_key(
                user=self.us.user, name="laptop", public_key=PUBLIC_KEY, now=self.began_at
            )
        accounts.issue_token(
            actor=self.us, name="dashboard", scopes=[Scope.READ], expires_at=None, now=self.now
        )

    def _acts(self) -> Iterator[tuple[datetime, Callable[[datetime], object]]]:
        """Everything that happens, with its moment; nothing of it lasts longer than a minute."""
        quiet = self.now - QUIET_BEFORE_END
        for day, usd in GRANTS_USD.items():
            if self.began_at + day * DAY < quiet:
                yield self.began_at + day * DAY, partial(self._grant, usd)
        for work in WORKS:
            yield from self._runs(work, until=min(quiet, self._until(work)))
        yield self._lost_at - 5 * HOUR, self._launch_on_lost
        yield self._lost_at, lambda at: self.nodes[LOST_MACHINE].sync(at=at)
        yield self._lost_at + GIVEN_UP_AFTER, self._give_up
        at = self.began_at + CHARGE_FIRST
        while at < quiet:
            yield at, self._charge
            at += CHARGE_EVERY

    @property
    def _lost_at(self) -> datetime:
        return self.now - LOST_BEFORE_END

    def _until(self, work: Work) -> datetime:
        """No run that the lost machine may get is on it when it goes silent."""
        [lost] = [machine for machine in MACHINES if machine.name == LOST_MACHINE]
        there = Plan.objects.get(sku=work.sku).gpu_model in {model for _, model, _ in lost.gpus}
        return self._lost_at - 6 * HOUR if there else self.now

    def _runs(
        self, work: Work, *, until: datetime
    ) -> Iterator[tuple[datetime, Callable[[datetime], object]]]:
        start = self.began_at + work.first_day * DAY + work.hour * HOUR
        while start + work.hours * HOUR + HOUR < until:
            yield start, partial(self._begin, work)
            if work.ending != Ending.NEVER_STARTED:
                yield start + work.hours * HOUR, partial(self._finish, work)
            start += work.every_days * DAY

    def _begin(self, work: Work, at: datetime) -> None:
        actor = self.members[work.team]
        last = self.latest.get(work)
        if work.again and last is not None:
            admission.start(actor=actor, instance=last, now=at)
        else:
            wish = Launch(work.team, work.name, work.sku)
            self.latest[work] = self._launch(wish, image=work.image, at=at)
        node = self._place(self.latest[work], at=at + 2 * SECOND)
        node.start(at=at + 4 * SECOND, fails=work.ending == Ending.NEVER_STARTED)

    def _finish(self, work: Work, at: datetime) -> None:
        actor, instance = self.members[work.team], self.latest[work]
        node = self._node_of(instance)
        if work.ending in EXIT_CODES:
            node.exit(instance.pk, exit_code=EXIT_CODES[work.ending], at=at)
            return
        end = ending.terminate if work.ending == Ending.TERMINATED else ending.stop
        end(actor=actor, instance=instance, now=at)
        node.clear(at=at + SECOND)

    def _launch(self, wish: Launch, *, image: str, at: datetime) -> Instance:
        self.launches += 1
        instance, _ = admission.launch(
            actor=self.members[wish.team],
            request=LaunchRequest(
                plan=Plan.objects.get(sku=wish.sku),
                image=Image.objects.get(slug=image),
                name=wish.name,
            ),
            launch_key=f"{KEY}:{self.launches}",
            now=at,
        )
        return instance

    def _place(self, instance: Instance, *, at: datetime) -> StoryNode:
        """A cycle that knows of nothing but this instance and the story's own machines."""
        ours = {story.node.pk: story for story in self._present(at)}
        for story in ours.values():
            story.see(at=at)
        free = [node for node in capacity.free_nodes(now=at) if node.node_id in ours]
        demand = Demand(instance.pk, capacity.shape_of(instance.plan))
        [assignment] = place([demand], free).assignments
        if not cycle.commit([assignment], now=at):
            raise Conflict(f"Somebody else took the GPUs of “{instance.name}”.")
        return ours[assignment.node_id]

    def _node_of(self, instance: Instance) -> StoryNode:
        lease = Lease.objects.get(instance=instance, ended_at=None)
        [story] = [story for story in self.nodes.values() if story.node.pk == lease.node_id]
        return story

    def _grant(self, usd: int, at: datetime) -> None:
        for member in self.members.values():
            goodwill.grant_credit(
                operator=self.operator,
                team=member.team,
                amount_micros=usd * MICROS,
                because="Demo data",
                key=f"{KEY}:{member.team.pk}:{at:%F}",
                now=at,
            )

    def _present(self, at: datetime) -> Iterator[StoryNode]:
        for name, story in self.nodes.items():
            if name != LOST_MACHINE or at <= self._lost_at:
                yield story

    def _charge(self, at: datetime) -> None:
        for story in self._present(at):
            if not story.is_idle:
                story.sync(at=at)
        charging.charge_due(now=at)
        if at.day == 1:
            statements.issue_due(now=at)

    def _launch_on_lost(self, at: datetime) -> None:
        instance = self._launch(LOST_WORK, image="pytorch", at=at)
        self._place(instance, at=at + 2 * SECOND).start(at=at + 4 * SECOND)

    def _give_up(self, at: datetime) -> None:
        node = self.nodes[LOST_MACHINE].node
        for lease in Lease.objects.filter(node=node, ended_at=None):
            leases.give_up(lease.instance_id, node=node, now=at)

    def _end(self) -> None:
        """The machines leave, but for the lost one; what is wanted now goes to the real fleet."""
        for name, story in self.nodes.items():
            if name == LOST_MACHINE:
                fleet.cordon(node=story.node, now=self.now - HOUR)
            else:
                fleet.retire(node=story.node, now=self.now - HOUR)
        first = self.now - len(LAUNCHES) * SECOND  # the queue keeps their order
        for turn, wish in enumerate(LAUNCHES):
            self._launch(wish, image=LAUNCHES_IMAGE, at=first + turn * SECOND)
