"""Every main page, in light and dark and on a phone: readable for all, and nothing sticks out."""

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.conftest import ADMIN, sign_in
from tests.stack.customer import PASSWORD, Customer
from tests.stack.stack import Stack

pytestmark = pytest.mark.browser

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True, "is_mobile": True},
}
ENTRANCES = ["/accounts/login/", "/accounts/signup/", "/accounts/password/reset/"]
PAGES = ["/", "/catalogue/", "/instances/", "/instances/launch", "/money/", "/settings/", "/fleet/"]
SERIOUS = ("serious", "critical")
# How light the page behind all is: 0 is black, 255 is white.
LIGHTNESS = """() => {
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
    return Math.max(...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3));
}"""
OVERHANG = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def browser_context_args(look: str) -> dict[str, Any]:
    return LOOKS[look]


def faults_of(page: Page) -> Iterator[str]:
    """What is wrong with the page that is shown, a sentence each."""
    if overhang := page.evaluate(OVERHANG):
        yield f"{page.url} is {overhang} px wider than the screen"
    for violation in Axe().run(page).response["violations"]:
        if violation["impact"] in SERIOUS:
            places = [node["target"] for node in violation["nodes"]][:3]
            yield f"{page.url}: {violation['help']} at {places}"


class TestEveryMainPage:
    def test_can_be_read_by_all(
        self, page: Page, stack: Stack, look: str, admin_password: str
    ) -> None:
        url = stack.urls[0]
        faults: list[str] = []
        for path in ENTRANCES:
            page.goto(url + path)
            faults += faults_of(page)
        sign_in(page, stack, ADMIN, admin_password)
        for path in PAGES:
            page.goto(url + path)
            faults += faults_of(page)

        assert faults == []
        assert (page.evaluate(LIGHTNESS) < 64) == (look == "dark")

    @pytest.mark.usefixtures("look")
    def test_of_an_instance_and_its_statement_can_too(self, page: Page, stack: Stack) -> None:
        customer = Customer.sign_up(stack)
        instance = customer.launch("l4-1x", ports=[8888])
        customer.wait_for(instance, "running")
        sign_in(page, stack, customer.email, PASSWORD)

        faults: list[str] = []
        for path in (f"/instances/{instance}", "/", "/instances/", "/money/", "/catalogue/"):
            page.goto(stack.urls[0] + path)
            faults += faults_of(page)
        customer.stop(instance)
        customer.wait_for(instance, "stopped")
        page.goto(f"{stack.urls[0]}/money/")
        page.get_by_role("link", name="As a statement").click()
        faults += faults_of(page)

        assert faults == []
