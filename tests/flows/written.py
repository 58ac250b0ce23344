"""What stands in the database, so that a refusal can be seen to have written nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps


@contextmanager
def nothing_is_written() -> Iterator[None]:
    """Fails the test where any row of any table is another one afterwards."""
    before = _all_rows()
    yield
    assert _all_rows() == before


def _all_rows() -> dict[str, list[tuple[Any, ...]]]:
    return {
        model._meta.label: list(model._base_manager.order_by("pk").values_list())
        for model in apps.get_models()
    }
