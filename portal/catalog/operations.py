"""Everything that can be done to plans and images; both are retired, never edited."""

import re
from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from portal.catalog.models import Image, Plan
from portal.errors import Conflict, DomainError

SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?")
# What `docker pull` takes: a host, a path, and a tag or a digest.
IMAGE_REFERENCE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}")
MAX_PORT = 65_535
DESCRIPTION_CHARACTERS = 200
COMMAND_WORDS = 64
WORD_CHARACTERS = 400
# Lowest and highest figure of each measure of a plan; one node has no more.
BOUNDS = {
    "gpu_count": (1, 16),
    "gpu_memory_gib": (1, 4_096),
    "vcpus": (1, 4_096),
    "memory_gib": (1, 65_536),
    "disk_gib": (1, 1_048_576),
}


class InvalidPlan(DomainError):
    code = "invalid_plan"


class SkuTaken(Conflict):
    code = "sku_taken"


class InvalidImage(DomainError):
    code = "invalid_image"


class SlugTaken(Conflict):
    code = "slug_taken"


@dataclass(frozen=True)
class PlanOffer:
    """The shape of a new plan; `gpu_model` as NVML names it, `gpu_memory_gib` of one GPU."""

    sku: str
    gpu_model: str
    gpu_count: int
    gpu_memory_gib: int
    vcpus: int
    memory_gib: int
    disk_gib: int


@dataclass(frozen=True)
class ImageOffer:
    """A new image. An empty command means the image's own; no `ready_port`: ready once it runs."""

    slug: str
    name: str
    reference: str
    description: str = ""
    command: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    ready_port: int | None = None


def publish_plan(offer: PlanOffer) -> Plan:
    """Offer a new plan; it can be launched once its sku has a price.

    Raises InvalidPlan, or SkuTaken also where a retired plan has the sku: what was sold under it
    stays what it was.
    """
    if not SLUG.fullmatch(offer.sku):
        raise InvalidPlan(
            f"“{offer.sku[:60]}” cannot be a sku.",
            next_step="Use lower-case letters, digits and hyphens, at most 60.",
        )
    if not _readable(offer.gpu_model, longest=40):
        raise InvalidPlan("A plan names its GPU model.", next_step="Write it as NVML does.")
    for measure, (lowest, highest) in BOUNDS.items():
        if not lowest <= getattr(offer, measure) <= highest:
            raise InvalidPlan(f"{measure.replace('_', ' ')} lies between {lowest} and {highest:,}.")
    try:
        with transaction.atomic():
            return Plan.objects.create(**asdict(offer))
    except IntegrityError as error:
        raise SkuTaken(
            f"There is or was a plan {offer.sku}.", next_step="Choose another sku."
        ) from error


def retire_plan(*, plan: Plan, now: datetime) -> None:
    """Launch no more of a plan; what runs on it runs on. Twice is as good as once."""
    Plan.objects.offered().filter(pk=plan.pk).update(retired_at=now)


def publish_image(offer: ImageOffer) -> Image:
    """Approve an image for launches. Raises InvalidImage, or SlugTaken."""
    _check_image(offer)
    fields = asdict(offer) | {"command": list(offer.command), "ports": sorted(set(offer.ports))}
    try:
        with transaction.atomic():
            return Image.objects.create(**fields)
    except IntegrityError as error:
        raise SlugTaken(
            f"There is or was an image {offer.slug}.", next_step="Choose another slug."
        ) from error


def retire_image(*, image: Image, now: datetime) -> None:
    """Launch no more of an image; what runs from it runs on. Twice is as good as once."""
    Image.objects.offered().filter(pk=image.pk).update(retired_at=now)


def _check_image(offer: ImageOffer) -> None:
    if not SLUG.fullmatch(offer.slug):
        raise InvalidImage(
            f"“{offer.slug[:60]}” cannot be a slug.",
            next_step="Use lower-case letters, digits and hyphens, at most 60.",
        )
    if not _readable(offer.name, longest=80) or len(offer.description) > DESCRIPTION_CHARACTERS:
        raise InvalidImage(
            "An image needs a name and a description that people can read.",
            next_step=f"Use at most 80 and {DESCRIPTION_CHARACTERS} characters.",
        )
    if not IMAGE_REFERENCE.fullmatch(offer.reference):
        raise InvalidImage(
            "This is no image reference.", next_step="Write it as `docker pull` takes it."
        )
    if not all(0 < port <= MAX_PORT for port in offer.ports):
        raise InvalidImage(f"A port lies between 1 and {MAX_PORT:,}.")
    if offer.ready_port is not None and offer.ready_port not in offer.ports:
        raise InvalidImage("The port that says ready has to be one of the image's ports.")
    too_long = any(len(word) > WORD_CHARACTERS or "\0" in word for word in offer.command)
    if len(offer.command) > COMMAND_WORDS or too_long:
        raise InvalidImage(
            f"A command has at most {COMMAND_WORDS} words of {WORD_CHARACTERS} characters."
        )


def _readable(text: str, *, longest: int) -> bool:
    return bool(text.strip()) and len(text) <= longest and text.isprintable()
