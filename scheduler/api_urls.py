from django.urls import path
from rest_framework.routers import SimpleRouter

from scheduler.api import GpuViewSet, JoinTokenView, NodeViewSet

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("nodes", NodeViewSet, basename="node")
router.register("gpus", GpuViewSet, basename="gpu")

urlpatterns = [*router.urls, path("join-tokens", JoinTokenView.as_view())]
