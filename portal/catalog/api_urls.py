from rest_framework.routers import SimpleRouter

from portal.catalog.api import ImageViewSet, PlanViewSet

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("plans", PlanViewSet, basename="plan")
router.register("images", ImageViewSet, basename="image")

urlpatterns = router.urls
