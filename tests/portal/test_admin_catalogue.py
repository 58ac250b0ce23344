"""Plans, images and prices in the operator's console."""

from datetime import timedelta

import pytest
from django.test import Client

from billing import prices
from billing.models import PriceBook
from portal.catalog.models import Image, Plan
from tests.factories import NOON, make_image, make_plan
from tests.portal.console import page

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]
DOLLAR = 1_000_000
PLAN = {
    "sku": "b200-8x",
    "gpu_model": "NVIDIA B200",
    "gpu_count": 8,
    "gpu_memory_gib": 180,
    "vcpus": 128,
    "memory_gib": 2048,
    "disk_gib": 4000,
}
IMAGE = {
    "slug": "tgi",
    "name": "TGI",
    "reference": "ghcr.io/huggingface/tgi:3",
    "command": "serve\n--port\n8080",
    "ports": "8080, 6006",
    "ready_port": 8080,
}


class TestCatalogue:
    def test_gets_a_plan_and_retires_it(self, console: Client) -> None:
        console.post(page(Plan, "publish_plan"), PLAN)
        plan = Plan.objects.get(**PLAN)

        console.post(page(plan, "retire", plan.pk))

        plan.refresh_from_db()
        assert plan.retired_at == NOON

    @pytest.mark.parametrize(
        "changes",
        [
            {"sku": "B200 8x"},
            {"sku": "taken"},
            {"gpu_model": "\t"},
            {"gpu_count": 0},
            {"vcpus": 40_000_000_000},
            {"disk_gib": ""},
        ],
    )
    def test_refuses_what_is_no_new_plan(self, console: Client, changes: dict[str, object]) -> None:
        make_plan()
        Plan.objects.update(sku="taken", retired_at=NOON)

        response = console.post(page(Plan, "publish_plan"), PLAN | changes)

        assert response.status_code == 422
        assert Plan.objects.get().sku == "taken"

    def test_gets_an_image_and_retires_it(self, console: Client) -> None:
        console.post(page(Image, "publish_image"), IMAGE)
        image = Image.objects.get(slug="tgi")

        console.post(page(image, "retire", image.pk))

        image.refresh_from_db()
        assert image.command == ["serve", "--port", "8080"]
        assert (image.ports, image.ready_port) == ([6006, 8080], 8080)
        assert image.retired_at == NOON

    @pytest.mark.parametrize(
        "changes",
        [
            {"slug": "A b"},
            {"slug": "taken"},
            {"name": "\t"},
            {"reference": "--privileged"},
            {"reference": "ubuntu 24.04"},
            {"ports": "eight"},
            {"ports": "99999"},
            {"ready_port": 9},
            {"command": "x" * 401},
        ],
    )
    def test_refuses_what_is_no_new_image(
        self, console: Client, changes: dict[str, object]
    ) -> None:
        make_image(slug="taken")

        response = console.post(page(Image, "publish_image"), IMAGE | changes)

        assert response.status_code == 422
        assert Image.objects.get().slug == "taken"


class TestPublishPrices:
    def test_shows_what_changes_before_it_publishes(self, console: Client) -> None:
        plan, other = make_plan(micros_per_hour=2 * DOLLAR), make_plan()
        versions = PriceBook.objects.count()
        path, fields = page(Plan, "publish_prices"), {f"price:{plan.sku}": "2.50", "note": "Spring"}

        shown = console.post(path, fields)
        published_by_showing = PriceBook.objects.count() - versions
        console.post(path, fields | {"shown": shown.context["form"].fingerprint})

        assert published_by_showing == 0
        assert "$2.0000" in shown.text
        assert "$2.5000" in shown.text
        assert "+25.0 %" in shown.text
        assert other.sku not in [change.plan.sku for change in shown.context["form"].changes]
        rates = prices.current_rates(NOON)
        assert (rates[plan.sku], rates[other.sku]) == (2_500_000, 2_490_000)

    def test_publishes_nothing_else_than_was_shown(self, console: Client) -> None:
        plan = make_plan(micros_per_hour=2 * DOLLAR)
        path, field = page(Plan, "publish_prices"), f"price:{plan.sku}"
        shown = console.post(path, {field: "2.50"}).context["form"].fingerprint

        response = console.post(path, {field: "25.0", "shown": shown})

        assert response.status_code == 200
        assert prices.current_rates(NOON)[plan.sku] == 2 * DOLLAR

    def test_lets_them_begin_later(self, console: Client) -> None:
        plan = make_plan(micros_per_hour=2 * DOLLAR)
        path = page(Plan, "publish_prices")
        fields = {f"price:{plan.sku}": "3", "effective_from": "2026-02-01T00:00"}

        shown = console.post(path, fields).context["form"].fingerprint
        console.post(path, fields | {"shown": shown})

        assert prices.current_rates(NOON)[plan.sku] == 2 * DOLLAR
        assert prices.current_rates(NOON + timedelta(days=31))[plan.sku] == 3 * DOLLAR

    @pytest.mark.parametrize(
        ("price", "effective_from"),
        [
            ("-1", ""),
            ("free", ""),
            ("2", ""),  # as it is already
            ("", ""),
            ("3", "2025-12-31T00:00"),
            ("3", "soon"),
        ],
    )
    def test_refuses_and_publishes_nothing(
        self, console: Client, price: str, effective_from: str
    ) -> None:
        plan = make_plan(micros_per_hour=2 * DOLLAR)
        path = page(Plan, "publish_prices")
        fields = {f"price:{plan.sku}": price, "effective_from": effective_from}

        response = console.post(path, fields)
        if response.status_code == 200:
            shown = response.context["form"].fingerprint
            response = console.post(path, fields | {"shown": shown})

        assert response.status_code == 422
        assert prices.current_rates(NOON)[plan.sku] == 2 * DOLLAR
