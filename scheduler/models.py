"""Nodes, their GPUs, and who holds them."""

from datetime import datetime
from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Count, Exists, Expression, OuterRef, Q

from portal.accounts.models import User
from portal.instances.models import Instance


class NodeQuerySet(models.QuerySet["Node"]):
    def with_gpu_counts(self) -> Self:
        """Each with `gpus_known` (in its last inventory) and `gpus_held`, in one query."""
        held = Q(gpus__allocations__released_at=None, gpus__allocations__isnull=False)
        return self.annotate(
            gpus_known=Count("gpus", filter=Q(gpus__present=True), distinct=True),
            gpus_held=Count("gpus", filter=held, distinct=True),
        )

    def taking_work(self, *, seen_after: datetime | Expression) -> Self:
        """Nodes that may be given new instances."""
        return self.filter(retired_at=None, cordoned_at=None, last_seen_at__gt=seen_after)


class NodeState(models.TextChoices):
    """What an operator wants to know of a node first; one that is away matters most."""

    READY = "ready", "Ready"
    CORDONED = "cordoned", "Cordoned"
    SUSPECT = "suspect", "Suspect"
    UNREACHABLE = "unreachable", "Unreachable"
    RETIRED = "retired", "Retired"


class Node(models.Model):
    """A machine that runs the agent."""

    name = models.CharField(max_length=63, unique=True)
    token_digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of its secret.")
    epoch = models.PositiveIntegerField(default=1, help_text="Grows at each enrolment.")
    enrolled_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(null=True, blank=True)
    cordoned_at = models.DateTimeField(null=True, blank=True, help_text="Takes no new work since.")
    retired_at = models.DateTimeField(null=True, blank=True)
    simulated = models.BooleanField(default=False, help_text="Its containers are simulated.")
    simulated_gpus = models.BooleanField(default=False)
    vcpus = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveBigIntegerField(default=0)
    driver_version = models.CharField(max_length=40, blank=True)
    agent_version = models.CharField(max_length=40, blank=True)
    runtime = models.CharField(max_length=80, blank=True, help_text="E.g. Docker 28.5.2.")
    inventory_digest = models.CharField(max_length=64, blank=True)

    objects = NodeQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    def state_at(self, now: datetime) -> NodeState:
        if self.retired_at is not None:
            return NodeState.RETIRED
        unseen = now - (self.last_seen_at or self.enrolled_at)
        if unseen > settings.NODE_UNREACHABLE_AFTER:
            return NodeState.UNREACHABLE
        if unseen > settings.NODE_SUSPECT_AFTER:
            return NodeState.SUSPECT
        return NodeState.READY if self.cordoned_at is None else NodeState.CORDONED


class JoinToken(models.Model):
    """A one-use secret that lets a machine enrol as a node. Only its digest is stored."""

    digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="+")

    def __str__(self) -> str:
        return f"join token #{self.pk}"


class GpuQuerySet(models.QuerySet["Gpu"]):
    def usable(self) -> Self:
        """Healthy and present, held or not."""
        return self.filter(healthy=True, present=True)

    def free(self) -> Self:
        """Usable and held by nobody; its node may still take no work."""
        held = Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None)
        return self.usable().filter(~Exists(held))


class Gpu(models.Model):
    """One physical device, known by the UUID that NVML reports (`GPU-…`)."""

    uuid = models.CharField(max_length=80, unique=True)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    model = models.CharField(max_length=40)
    memory_mib = models.PositiveIntegerField()
    present = models.BooleanField(default=True, help_text="In the node's last inventory.")
    healthy = models.BooleanField(default=True)
    problem = models.CharField(max_length=200, blank=True)

    objects = GpuQuerySet.as_manager()

    def __str__(self) -> str:
        return self.uuid


class Lease(models.Model):
    """A node's right to run one instance, until `expires_at`.

    Each sync renews it. `generation` counts the leases of an instance and fences: the node
    refuses a lower one than it has seen.
    """

    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="leases")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="leases")
    generation = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="instance_has_one_live_lease",
                fields=["instance"],
                condition=Q(ended_at__isnull=True),
            ),
            models.UniqueConstraint(
                name="lease_generation_once_per_instance", fields=["instance", "generation"]
            ),
        ]
        indexes = [
            models.Index(name="lease_live_by_node", fields=["node"], condition=Q(ended_at=None)),
        ]

    def __str__(self) -> str:
        return f"{self.instance_id} on {self.node_id}, generation {self.generation}"


class Allocation(models.Model):
    """One GPU given to one instance, until it is released."""

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="allocations")
    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="allocations")
    instance = models.ForeignKey(Instance, on_delete=models.PROTECT, related_name="allocations")
    allocated_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            # The database is the last judge: two cycles can plan the same GPU, one commits.
            models.UniqueConstraint(
                name="gpu_has_one_live_allocation",
                fields=["gpu"],
                condition=Q(released_at__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} → {self.instance_id}"
