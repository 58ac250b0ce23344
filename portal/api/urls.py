"""The API's routes: each noun's are included by name, not imported."""

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.negotiation import DefaultContentNegotiation

from portal.api.docs import Docs
from portal.api.errors import not_found

# The document comes as YAML or as JSON, whichever the client accepts.
schema = SpectacularAPIView.as_view(content_negotiation_class=DefaultContentNegotiation)

urlpatterns = [
    path("schema", schema, name="api-schema"),
    path("docs", Docs.as_view(), name="api-docs"),
    path("", include("portal.accounts.api_urls")),
    path("", include("portal.catalog.api_urls")),
    path("", include("portal.instances.api_urls")),
    path("", include("portal.wallet.api_urls")),
    path("fleet/", include("scheduler.api_urls")),
    re_path("", not_found),
]
