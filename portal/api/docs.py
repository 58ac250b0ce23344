"""The OpenAPI document as a page to read and try."""

from django.utils.csp import CSP
from django.utils.decorators import method_decorator
from django.views.decorators.csp import csp_override
from drf_spectacular.views import SpectacularSwaggerSplitView

# Swagger UI styles its page as it draws it; nothing else on the site may do so.
POLICY: dict[str, list[str]] = {
    "default-src": [CSP.SELF.value],
    "style-src": [CSP.SELF.value, CSP.UNSAFE_INLINE.value],
    "img-src": [CSP.SELF.value, "data:"],
    "object-src": [CSP.NONE.value],
    "base-uri": [CSP.NONE.value],
    "frame-ancestors": [CSP.NONE.value],
    "form-action": [CSP.SELF.value],
}


@method_decorator(csp_override(POLICY), name="dispatch")
class Docs(SpectacularSwaggerSplitView):
    """Scripts come from our own address alone, the one that starts it included."""

    url_name = "api-schema"
