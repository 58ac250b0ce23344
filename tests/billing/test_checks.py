from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from pytest_django.fixtures import Settings


def found() -> list[str | None]:
    return [error.id for error in run_checks() if str(error.id).startswith("billing.")]


class TestChecks:
    def test_find_nothing_in_the_settings_as_they_come(self) -> None:
        assert found() == []

    @pytest.mark.parametrize(
        ("setting", "value", "error"),
        [
            ("CONFIRMATION_TOLERANCE", timedelta(seconds=34), "billing.E001"),
            ("LAUNCH_RUNWAY", timedelta(0), "billing.E002"),
            ("TRIAL_CREDIT_MICROS", -1, "billing.E002"),
        ],
    )
    def test_find_settings_that_do_not_fit(
        self, settings: Settings, setting: str, value: Any, error: str
    ) -> None:
        setattr(settings, setting, value)

        assert found() == [error]
