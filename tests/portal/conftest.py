"""Who uses the operator's console in tests, at a moment that stands still."""

from collections.abc import Iterator

import pytest
import time_machine
from django.test import Client

from portal.accounts.models import User
from tests.factories import NOON


@pytest.fixture
def at_noon() -> Iterator[None]:
    with time_machine.travel(NOON, tick=False):
        yield


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser("operator@example.org", "pw")


@pytest.fixture
def console(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client
