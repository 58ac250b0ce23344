"""What the OpenAPI document says beyond what drf-spectacular finds by itself: the problems."""

from http import HTTPStatus
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
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
    errors = serializers.DictField(  # type: ignore[assignment]
        required=False, help_text="Sentences per field."
    )


class ProblemSchema(AutoSchema):
    """Adds to each operation the refusals that its kind can give."""

    def get_operation_id(self) -> str:
        """`instances_stop`, where drf-spectacular says `instances_stop_create`."""
        name = str(super().get_operation_id())
        creates = getattr(self.view, "action", None) == "create"
        return name if creates else name.removesuffix("_create")

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        self.resolve_serializer(Problem, direction)
        refusals = {
            str(status): {"$ref": f"#/components/responses/{component_of(status)}"}
            for status in self._refusals()
        }
        return {**super()._get_response_bodies(direction), **refusals}

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


def component_of(status: int) -> str:
    return HTTPStatus(status).name.title().replace("_", "")


def finish(result: Any, **_: Any) -> Any:
    """A postprocessing hook: the refusals once for all, and what requests carry is closed."""
    components = result["components"]
    components["responses"] = {
        component_of(status): {
            "description": description,
            "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, description in CATALOGUE.items()
    }
    for path in result["paths"].values():
        for operation in path.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                name = media["schema"].get("$ref", "").rpartition("/")[2]
                if name:
                    components["schemas"][name]["additionalProperties"] = False
    return result
