"""What is rented: instances, and the events that explain each move."""

import uuid
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from portal.accounts.models import Member, Team, User
from portal.catalog.models import Image, Plan


class State(models.TextChoices):
    """Where an instance is in its life. Legal moves are in `lifecycle.MOVES`."""

    QUEUED = "queued", "Queued"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    STOPPING = "stopping", "Stopping"
    STOPPED = "stopped", "Stopped"
    TERMINATED = "terminated", "Terminated"
    FAILED = "failed", "Failed"


LIVE_STATES = (State.QUEUED, State.STARTING, State.RUNNING, State.STOPPING)
END_STATES = (State.TERMINATED, State.FAILED)


class Wanted(models.TextChoices):
    """What its people last asked for; `state` is how far it got."""

    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"
    TERMINATED = "terminated", "Terminated"


class Pricing(models.TextChoices):
    """How an instance is paid for."""

    ON_DEMAND = "on_demand", "On demand"


class Phase(models.TextChoices):
    """What happens inside "starting": shown, never decided upon."""

    WAITING_FOR_NODE = "waiting_for_node", "Waiting for its node"
    PULLING = "pulling", "Pulling the image"
    CREATING = "creating", "Creating the container"
    PROBING = "probing", "Waiting until it is ready"


class Reason(models.TextChoices):
    """Why an instance moved. Part of the public API: add, never rename."""

    LAUNCHED = "launched", "Launched"
    STARTED_AGAIN = "started_again", "Started again"
    WAITING_FOR_CAPACITY = "waiting_for_capacity", "Waiting for capacity"
    PLACED = "placed", "Placed on a node"
    READY = "ready", "Ready"
    RESTARTED_ELSEWHERE = "restarted_elsewhere", "Start tried again"
    USER_STOP = "user_stop", "Stopped by a member"
    USER_TERMINATE = "user_terminate", "Terminated by a member"
    OPERATOR_STOP = "operator_stop", "Stopped by the operator"
    OPERATOR_TERMINATE = "operator_terminate", "Terminated by the operator"
    OUT_OF_FUNDS = "out_of_funds", "Out of funds"
    SUSPENDED = "suspended", "Team suspended"
    FINISHED = "finished", "Finished by itself"
    CONTAINER_EXITED = "container_exited", "The container exited"
    CONTAINER_LOST = "container_lost", "The container disappeared"
    IMAGE_UNAVAILABLE = "image_unavailable", "The image cannot be pulled"
    START_FAILED = "start_failed", "The container could not be started"
    START_TIMEOUT = "start_timeout", "Not ready in time"
    GPU_FAULT = "gpu_fault", "GPU fault"
    NODE_LOST = "node_lost", "Node lost"
    GONE = "gone", "The container is gone"


class InstanceQuerySet(models.QuerySet["Instance"]):
    def for_team(self, team: Team) -> Self:
        return self.filter(team=team)

    def visible_to(self, user_id: int | None) -> Self:
        """The one rule of who sees what; pages, API and exports all start here."""
        return self.filter(team__members__user=user_id)

    def live(self) -> Self:
        """Every instance that holds, or waits for, hardware."""
        return self.filter(state__in=LIVE_STATES)

    def in_queue_order(self) -> Self:
        """Highest priority class first, then first come first served; `pk` breaks ties."""
        return self.filter(state=State.QUEUED).order_by("-team__priority_class", "queued_at", "pk")


class Instance(models.Model):
    """One container that a team rents, from the launch request to the last event.

    A row says what the customer asked for and how far it got. Which GPUs it holds is the
    scheduler's to know (`scheduler.Allocation`); what it costs is billing's
    (`billing.UsageInterval`). `state` is written by `lifecycle.advance` alone.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="instances")
    launched_by = models.ForeignKey(Member, null=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=63)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="+")
    image = models.ForeignKey(Image, on_delete=models.PROTECT, related_name="+")
    pricing = models.CharField(max_length=12, choices=Pricing, default=Pricing.ON_DEMAND)
    micros_per_hour = models.BigIntegerField(help_text="The price its last launch was quoted.")
    command = ArrayField(
        models.CharField(max_length=400), default=list, blank=True, help_text="Empty: the image's."
    )
    env = models.JSONField(default=dict, blank=True)
    ports = ArrayField(models.PositiveIntegerField(), default=list, blank=True)
    ssh_keys = ArrayField(models.TextField(), default=list, blank=True)
    launch_key = models.CharField(
        max_length=100, help_text="Chosen by the client, so that a retry launches nothing new."
    )
    wanted = models.CharField(max_length=10, choices=Wanted, default=Wanted.RUNNING)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    state_changed_at = models.DateTimeField()
    queued_at = models.DateTimeField()
    reason = models.CharField(max_length=24, choices=Reason)
    explanation = models.CharField(max_length=300, help_text="The reason in a sentence.")
    phase = models.CharField(max_length=20, choices=Phase, blank=True)
    phase_percent = models.PositiveSmallIntegerField(null=True, blank=True)
    endpoints = models.JSONField(
        default=dict, blank=True, help_text='Container port → "host:port", while it runs.'
    )
    start_attempts = models.PositiveSmallIntegerField(default=0)
    simulated = models.BooleanField(default=False, help_text="No real container stands behind it.")

    objects = InstanceQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="instance_launch_key_once_per_team", fields=["team", "launch_key"]
            ),
            models.CheckConstraint(
                name="instance_state_is_known", condition=Q(state__in=State.values)
            ),
            models.CheckConstraint(
                name="instance_always_has_a_reason",
                condition=~Q(reason="") & ~Q(explanation=""),
            ),
        ]
        indexes = [
            models.Index(
                name="instance_queue", fields=["queued_at", "id"], condition=Q(state="queued")
            ),
            models.Index(name="instance_by_team", fields=["team", "-queued_at"]),
            # What a team has in use is counted at each launch, however long its past.
            models.Index(name="instance_by_team_and_state", fields=["team", "state"]),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.state})"

    @property
    def is_settled(self) -> bool:
        """True once nothing more will happen by itself: a page can stop polling."""
        return self.state in (State.STOPPED, *END_STATES)


class InstanceEvent(models.Model):
    """Why an instance moved, in words a customer can read. Append-only."""

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="events")
    state = models.CharField(max_length=10, choices=State)
    reason = models.CharField(max_length=24, choices=Reason)
    explanation = models.CharField(max_length=300)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    at = models.DateTimeField()
    effective_at = models.DateTimeField(
        help_text="From when it counts for what is paid: the meter's moment, never after `at`."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="event_always_has_a_reason", condition=~Q(reason="") & ~Q(explanation="")
            ),
        ]
        indexes = [models.Index(name="event_by_instance", fields=["instance", "at", "id"])]

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.state}: {self.reason}"
