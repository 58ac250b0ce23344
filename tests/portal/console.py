"""Where a page of the operator's console is."""

from typing import Any

from django.urls import reverse


def page(row_or_model: Any, view: str, *args: object) -> str:
    """The address of a view, or of an act, of a row's or a model's list."""
    options = row_or_model._meta
    return reverse(f"admin:{options.app_label}_{options.model_name}_{view}", args=args)
