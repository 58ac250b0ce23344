"""What the OpenAPI document says beyond what drf-spectacular finds by itself: the problems."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from portal.api.errors import CONTENT_TYPE

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description=(
        "Drawn by the client, e.g. a UUID. The same key and body get the same answer for a day, "
        "refusals included; a new attempt needs a new key."
    ),
)

CATALOGUE = {
    400: "The request is malformed; `errors` names the fields.",
    401: "Not signed in, or a token that opens nothing (any more).",
    403: "Not within the token's scopes or the member's role.",
    404: "There is no such thing, or it is another team's.",
    409: "It contradicts the present state.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    422: "Understood and refused; `code` says why.",
    429: "Too many requests; `Retry-After` says when to come again.",
}


class Problem(serializers.Serializer[Any]):
    """A refusal (RFC 9457). `code` is stable; `detail` and `next_step` are for people."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    next_step = serializers.CharField(required=False)
    errors = serializers.DictField(required=False, help_text="Sentences per field.")


class ProblemSchema(AutoSchema):
    """Adds to each operation the refusals that its kind can give."""

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        for status in self._refusals():
            bodies[str(status)] = self._get_response_for_code(
                OpenApiResponse(Problem, CATALOGUE[status]), str(status), [CONTENT_TYPE]
            )
        return bodies

    def _refusals(self) -> list[int]:
        refusals = {429}
        if self.get_auth():
            refusals |= {401, 403}
        if "{" in self.path:
            refusals |= {404}
        if self.method == "GET":
            refusals |= {400}
        if self.method == "POST":
            refusals |= {400, 401, 403, 404, 409, 413, 415, 422}
        if self.method == "DELETE":
            refusals |= {409, 422}
        return sorted(refusals)


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "portal.accounts.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "hr_…"}


def refuse_unknown_fields(result: Any, **_: Any) -> Any:
    """A postprocessing hook: what requests may carry is closed, as `StrictSerializer` has it."""
    schemas = result["components"]["schemas"]
    for path in result["paths"].values():
        for operation in path.values():
            content = operation.get("requestBody", {}).get("content", {})
            for media in content.values():
                name = media["schema"].get("$ref", "").rpartition("/")[2]
                if name:
                    schemas[name]["additionalProperties"] = False
    return result
