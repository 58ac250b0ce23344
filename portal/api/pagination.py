"""Lists page by page: a cursor, so that rows that come and go shift nothing."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from rest_framework.exceptions import NotFound, ParseError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.views import APIView

PAGE_SIZE = 50
PAGE_SIZE_MAX = 200


class Pages(CursorPagination):
    """`{next, previous, results}`. Each view names its order in `page_order`, unique at its end."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = PAGE_SIZE_MAX
    template = None

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        return tuple(view.page_order)

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError, DataError) as error:
            # A cursor is text that a client can forge, and so is the position inside.
            raise ParseError("The cursor is not one of ours.") from error
