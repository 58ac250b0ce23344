from django.urls import path
from rest_framework.routers import SimpleRouter

from portal.instances.api import EventViewSet, InstanceViewSet, PreflightView, QueueView

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("instances", InstanceViewSet, basename="instance")

urlpatterns = [
    *router.urls,
    path("instances/<uuid:pk>/events", EventViewSet.as_view({"get": "list"})),
    path("preflight", PreflightView.as_view()),
    path("queue", QueueView.as_view()),
]
