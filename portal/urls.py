"""Root routes; other rooms' routes are included by name, not imported."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("agent/v1/", include("scheduler.agent_urls")),
]
