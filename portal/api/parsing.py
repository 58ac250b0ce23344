"""Bodies in, JSON out: nothing else is spoken, and what could not be stored is refused here."""

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from portal.api.errors import Refused

BODY_BYTES_MAX = 1_048_576


class BodyParser(BaseParser):
    """JSON as RFC 8259 has it, UTF-8, at most one MiB, and no text that PostgreSQL cannot hold."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        body = stream.read(BODY_BYTES_MAX + 1)
        if len(body) > BODY_BYTES_MAX:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", "The body exceeds one MiB."
            )
        try:
            content = json.loads(body.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ParseError("The body is not JSON.") from error
        _check_storable(content)
        return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_storable(content: object) -> None:
    """Raises ParseError for a NUL or half a surrogate pair in any text, keys included."""
    text = json.dumps(content, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParseError("The body contains half a surrogate pair.") from error
    if "\\u0000" in text.replace("\\\\", ""):
        raise ParseError("The body contains a NUL character.")


class JsonOnly(BaseContentNegotiation):
    """Answers in JSON whatever is asked for; RFC 9110 lets a server do so instead of 406."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        kind = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(
        self,
        request: Request,
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type
