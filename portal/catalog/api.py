"""The API of what can be rented."""

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import mixins
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from billing import prices
from portal.accounts.roles import Scope
from portal.catalog.models import Image, Plan
from portal.catalog.serializers import ImageDetail, PlanDetail


class PlanViewSet(mixins.ListModelMixin, GenericViewSet[Plan]):
    """Plans. No rule is here: what is offered, the model knows."""

    read_scope = write_scope = Scope.READ
    serializer_class = PlanDetail
    page_order = ("sku",)

    def get_queryset(self) -> QuerySet[Plan]:
        return Plan.objects.offered().select_related("availability")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """What is offered, what an hour of it costs, and how many would start now."""
        page = self.paginate_queryset(self.get_queryset()) or []
        context = {"rates": prices.current_rates(timezone.now())}
        return self.get_paginated_response(PlanDetail(page, many=True, context=context).data)


class ImageViewSet(mixins.ListModelMixin, GenericViewSet[Image]):
    """What an instance can start from."""

    read_scope = write_scope = Scope.READ
    serializer_class = ImageDetail
    page_order = ("slug",)

    def get_queryset(self) -> QuerySet[Image]:
        return Image.objects.offered()
