"""Input that is refused rather than guessed at: unknown fields and wrong JSON types."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

UNKNOWN_FIELDS_NAMED = 20


class StrictSerializer(serializers.Serializer[Any]):
    """What a client may send; a field that is not declared here is an error, never ignored."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = sorted(set(data) - known)
            if unknown:
                raise serializers.ValidationError(
                    {name[:100]: ["Unknown field."] for name in unknown[:UNKNOWN_FIELDS_NAMED]}
                )
        return super().to_internal_value(data)


def parsed(kind: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """The body of `request` as `kind` has it. Raises ValidationError."""
    return _built(kind).run_validation(request.data)  # type: ignore[no-any-return]


@cache
def _built(kind: type[StrictSerializer]) -> StrictSerializer:
    """One for all requests: it keeps nothing of any, and its fields are dear to make."""
    return kind()


class Nothing(StrictSerializer):
    """The body of a request that needs none: absent, or an empty object."""


class TextField(serializers.CharField):
    """A JSON string, kept as it is sent. DRF's own field takes numbers too, and trims."""

    default_error_messages = {"not_text": "Must be a string."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("not_text")
        return super().to_internal_value(data)


class WholeNumberField(serializers.IntegerField):
    """A JSON integer within bounds. DRF's own field takes strings and fractions of nought too."""

    default_error_messages = {"not_whole": "Must be a whole number."}

    def __init__(self, *, min_value: int, max_value: int, **kwargs: Any) -> None:
        super().__init__(min_value=min_value, max_value=max_value, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int) or isinstance(data, bool):
            self.fail("not_whole")
        return super().to_internal_value(data)
