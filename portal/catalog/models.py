"""What can be rented: plans, the images they start from, and how much is free now."""

from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q


class OfferedQuerySet[M: models.Model](models.QuerySet[M]):
    def offered(self) -> Self:
        return self.filter(retired_at=None)


class Plan(models.Model):
    """A shape that can be rented, e.g. 2 × H100 with 480 GiB of memory.

    `sku` is the key that billing prices; a plan is retired, never edited, so that what a running
    instance was sold as cannot change under it.
    """

    sku = models.SlugField(max_length=60, unique=True)
    gpu_model = models.CharField(max_length=40, help_text="As NVML names it, e.g. H100 80GB HBM3.")
    gpu_count = models.PositiveSmallIntegerField()
    gpu_memory_gib = models.PositiveIntegerField(help_text="Of one GPU.")
    vcpus = models.PositiveSmallIntegerField()
    memory_gib = models.PositiveIntegerField()
    disk_gib = models.PositiveIntegerField()
    retired_at = models.DateTimeField(null=True, blank=True)

    objects = OfferedQuerySet["Plan"].as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="plan_has_a_gpu", condition=Q(gpu_count__gte=1)),
            models.CheckConstraint(
                name="plan_has_cpu_and_memory", condition=Q(vcpus__gte=1, memory_gib__gte=1)
            ),
        ]

    def __str__(self) -> str:
        return self.sku


class Image(models.Model):
    """What a container starts from, approved by us."""

    slug = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=80)
    reference = models.CharField(max_length=255, help_text="As `docker pull` takes it.")
    description = models.CharField(max_length=200, blank=True)
    command = ArrayField(
        models.CharField(max_length=400), default=list, blank=True, help_text="Empty: the image's."
    )
    ports = ArrayField(models.PositiveIntegerField(), default=list, blank=True)
    ready_port = models.PositiveIntegerField(
        null=True, blank=True, help_text="Ready when this port answers; empty: when it runs."
    )
    retired_at = models.DateTimeField(null=True, blank=True)

    objects = OfferedQuerySet["Image"].as_manager()

    def __str__(self) -> str:
        return self.slug


class Availability(models.Model):
    """How many instances of a plan would start now. Written by the scheduler, read by pages."""

    plan = models.OneToOneField(Plan, on_delete=models.CASCADE, related_name="availability")
    free_now = models.PositiveIntegerField()
    total = models.PositiveIntegerField(help_text="With every node empty.")
    simulated = models.BooleanField(default=False, help_text="Only simulated GPUs offer it.")
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.plan_id}: {self.free_now} of {self.total}"
