"""Fixtures that every room's tests share."""

import pytest
from django.db import connection


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: object) -> None:
    """Tests with real transactions empty all tables afterwards, which the ledger refuses.

    The trigger that refuses it has a test of its own, in which it stands again.
    """
    with django_db_blocker.unblock(), connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("DROP TRIGGER ledger_is_never_emptied ON billing_ledgerentry")
