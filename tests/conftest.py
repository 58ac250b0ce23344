"""What every test of the database needs."""

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

# Tests that commit are cleaned up after by TRUNCATE, which these refuse.
TRUNCATE_TRIGGERS = {
    "billing_ledgerentry": "entry_is_never_truncated",
    "billing_statementline": "line_is_never_truncated",
}


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        for table, trigger in TRUNCATE_TRIGGERS.items():
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
