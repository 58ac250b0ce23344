"""Fixtures that every room's tests share."""

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

# By table, the trigger that refuses to empty it.
NEVER_EMPTIED = {
    "billing_ledgerentry": "entry_is_never_truncated",
    "billing_statementline": "line_is_never_truncated",
}


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Tests with real transactions empty all tables afterwards, which the ledger refuses.

    The triggers that refuse it have a test of their own, in which they stand again.
    """
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        for table, trigger in NEVER_EMPTIED.items():
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
