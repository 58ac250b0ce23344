"""`python -m tests.stack.prepare`: make a stack's database ready, in one Django process.

Beside the catalogue that every installation is seeded with, it offers what the tests launch: one
GPU with so little beside it that the smallest machine carries it, at a price that is easy to
reckon with. What it prints last is a list of join tokens, as JSON.
"""

import json

import django

JOIN_TOKENS = 4
# One thousand micros for each second.
MICROS_PER_HOUR = 3_600_000
# By sku: the GPU model, as the rig's or the simulation's NVML names it.
PLANS = {
    "a100-small": "NVIDIA A100-SXM4-80GB",
    "l4-small": "NVIDIA L4",
}
# By slug: the reference, the command, the ports and the one that must answer.
IMAGES: dict[str, tuple[str, list[str], list[int], int | None]] = {
    "waits": ("rig/bb:1", ["sleep", "infinity"], [], None),
    "cuda": ("rig/bb-cuda:1", ["sleep", "infinity"], [], None),
    "page": ("rig/bb:1", ["httpd", "-f", "-p", "8080", "-h", "/etc"], [8080], 8080),
    # A registry of the tests, inside the rig's network, knows no image at all.
    "absent": ("127.0.0.1:5000/team/absent:1", [], [], None),
}


def main() -> None:
    django.setup()
    # Models exist only after the setup.
    from portal.up.prepare import manage  # noqa: PLC0415

    manage("migrate", "--verbosity", "0")
    manage("seed")
    _offer_what_tests_launch()
    tokens = [manage("enroll_node", "--token-only") for _ in range(JOIN_TOKENS)]
    print(json.dumps(tokens))  # noqa: T201 - the stack reads it


def _offer_what_tests_launch() -> None:
    from django.utils import timezone  # noqa: PLC0415

    from billing import prices  # noqa: PLC0415
    from portal.catalog.models import Image, Plan  # noqa: PLC0415

    for sku, model in PLANS.items():
        Plan.objects.create(
            sku=sku,
            gpu_model=model,
            gpu_count=1,
            gpu_memory_gib=80,
            vcpus=1,
            memory_gib=1,
            disk_gib=1,
        )
    now = timezone.now()
    prices.publish(
        prices=dict.fromkeys(PLANS, MICROS_PER_HOUR),
        effective_from=now,
        note="What the tests launch.",
        now=now,
    )
    for slug, (reference, command, ports, ready_port) in IMAGES.items():
        Image.objects.create(
            slug=slug,
            name=slug.title(),
            reference=reference,
            command=command,
            ports=ports,
            ready_port=ready_port,
        )


if __name__ == "__main__":
    main()
