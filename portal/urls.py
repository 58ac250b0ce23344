"""Root routes; other rooms' routes are included by name, not imported."""

from django.contrib import admin
from django.urls import include, path

from portal.instances import views as instance_views

urlpatterns = [
    path("", instance_views.dashboard, name="dashboard"),
    path("catalogue/", include("portal.catalog.urls")),
    path("instances/", include("portal.instances.urls")),
    path("money/", include("portal.wallet.urls")),
    path("settings/", include("portal.accounts.urls")),
    path("fleet/", include("scheduler.urls")),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("api/v1/", include("portal.api.urls")),
]
