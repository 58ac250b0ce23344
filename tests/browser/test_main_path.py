"""A newcomer's way in the browser: sign up, launch, watch it run and cost, stop, the statement."""

import re
from decimal import Decimal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS, sign_in
from tests.stack.processes import Process
from tests.stack.stack import Stack

pytestmark = pytest.mark.browser

EMAIL, PASSWORD = "newcomer@example.org", "correct-horse-battery"
NAME = "first-run"


def dollars(text: str) -> Decimal:
    """The amount in a text such as “−$1.234567”."""
    found = re.search(r"([-−]?)\$([\d,]+\.\d+)", text)
    assert found is not None, text
    amount = Decimal(found[2].replace(",", ""))
    return -amount if found[1] else amount


def sign_up(page: Page, stack: Stack) -> None:
    page.goto(f"{stack.urls[0]}/accounts/signup/")
    page.get_by_label("Email").fill(EMAIL)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password (again)").fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name="Check your mail")).to_be_visible()
    page.goto(stack.verification_url(EMAIL))
    page.get_by_role("button", name="Yes, confirm").click()
    sign_in(page, stack, EMAIL, PASSWORD)


def mark(page: Page) -> None:
    """Leave a mark that only a reload wipes away."""
    page.evaluate("window.mark = 'still here'")


def is_marked(page: Page) -> bool:
    return bool(page.evaluate("window.mark === 'still here'"))


class TestANewcomer:
    def test_signs_up_launches_watches_stops_and_reads_the_statement(
        self, page: Page, stack: Stack, agent: Process
    ) -> None:
        expect.set_options(timeout=PATIENCE_MS)
        sign_up(page, stack)
        page.get_by_role("main").get_by_role("link", name="Launch an instance").click()
        # Of the two plans with one L4, the one that every installation is seeded with.
        offer = page.get_by_role("listitem").filter(has_text="$0.39")
        offer.get_by_role("link", name="Launch 1 × NVIDIA L4", exact=True).click()
        page.get_by_role("textbox", name="Name").fill(NAME)

        # A frozen node keeps it starting for as long as we look at that.
        agent.freeze()
        page.get_by_role("button", name="Launch", exact=True).click()
        expect(page.get_by_role("heading", name=NAME)).to_be_visible()
        state = page.locator("#live .badge").first
        expect(state).to_contain_text("Starting")
        shown_at = urlsplit(page.url).path
        mark(page)
        agent.thaw()
        expect(state).to_contain_text("Running")
        expect(page.locator("#live").get_by_text("Simulated").first).to_be_visible()

        cost = page.locator("#cost p").first
        for _ in range(2):
            before = cost.inner_text()
            expect(cost).not_to_have_text(before)
            assert dollars(cost.inner_text()) > dollars(before)

        page.get_by_role("button", name="Stop", exact=True).click()
        expect(state).to_contain_text("Stopped")
        expect(page.locator("#cost")).to_contain_text("the meter is closed")
        assert is_marked(page)
        paid = dollars(cost.inner_text())
        assert paid > 0

        page.get_by_role("banner").get_by_role("link", name="Money").click()
        page.get_by_role("link", name="As a statement").click()
        line = page.get_by_role("row").filter(has=page.locator(f"a[href='{shown_at}']"))
        amounts = [dollars(text) for text in page.locator("tr > :last-child").all_inner_texts()[1:]]
        assert abs(dollars(line.locator("td").last.inner_text())).quantize(paid) == paid
        assert sum(amounts[:-1]) == amounts[-1]
        stack.check_ledger()
