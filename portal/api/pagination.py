"""Lists page by page: a cursor, so that rows that come and go shift nothing."""

import re
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from rest_framework import serializers
from rest_framework.exceptions import NotFound, ParseError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.views import APIView

PAGE_SIZE = 50
PAGE_SIZE_MAX = 200
PAGE_SIZE_TEXT = re.compile(r"[1-9][0-9]{0,2}")


class Pages(CursorPagination):
    """`{next, previous, results}`. Each view names its order in `page_order`, unique at its end."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = PAGE_SIZE_MAX
    template = None

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        return tuple(view.page_order)

    def get_page_size(self, request: Request) -> int:
        """What is asked for, within bounds. DRF takes the default for what it cannot read."""
        asked = request.query_params.get(self.page_size_query_param)
        if asked is None:
            return PAGE_SIZE
        if not PAGE_SIZE_TEXT.fullmatch(asked) or int(asked) > PAGE_SIZE_MAX:
            sentence = f"A whole number from 1 to {PAGE_SIZE_MAX}."
            raise serializers.ValidationError({self.page_size_query_param: [sentence]})
        return int(asked)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        size = {"type": "integer", "minimum": 1, "maximum": PAGE_SIZE_MAX, "default": PAGE_SIZE}
        return [
            {
                "name": "cursor",
                "in": "query",
                "required": False,
                "description": "As `next` and `previous` carry it.",
                "schema": {"type": "string"},
            },
            {
                "name": "page_size",
                "in": "query",
                "required": False,
                "description": "How many results a page holds at most.",
                "schema": size,
            },
        ]

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError, DataError) as error:
            # A cursor is text that a client can forge, and so is the position inside.
            raise ParseError("The cursor is not one of ours.") from error
