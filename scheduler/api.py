"""The API of the fleet, for operators: parse → one operation → render."""

from collections.abc import Callable
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from portal.accounts.authentication import WithinScope
from portal.accounts.idempotency import idempotent
from portal.accounts.roles import Scope
from portal.api.schema import IDEMPOTENCY_KEY
from portal.api.strict import Nothing, parsed
from scheduler import fleet
from scheduler.models import Allocation, Gpu, Node
from scheduler.serializers import GpuDetail, NewJoinToken, NodeDetail

OPERATORS = (WithinScope, IsAdminUser)


class NodeViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Node]):
    """Nodes. Acts answer with the node as it stands then."""

    read_scope = write_scope = Scope.FLEET
    permission_classes = OPERATORS
    serializer_class = NodeDetail
    lookup_value_converter = "int"
    page_order = ("name", "pk")

    def get_queryset(self) -> QuerySet[Node]:
        return Node.objects.with_gpu_counts()

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "now": timezone.now()}

    @extend_schema(request=Nothing, responses={202: NodeDetail})
    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, pk: int) -> Response:
        """Take no new work; what runs, runs on."""
        return self._act(lambda node: fleet.cordon(node=node, now=timezone.now()))

    @extend_schema(request=Nothing, responses={202: NodeDetail})
    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, pk: int) -> Response:
        """Take new work again."""
        return self._act(lambda node: fleet.uncordon(node=node))

    @extend_schema(request=Nothing, responses={202: NodeDetail})
    @action(detail=True, methods=["post"])
    def retire(self, request: Request, pk: int) -> Response:
        """Give it up for good: its secret opens nothing, and what it still held ends as lost."""
        return self._act(lambda node: fleet.retire(node=node, now=timezone.now()))

    def _act(self, operation: Callable[[Node], object]) -> Response:
        parsed(Nothing, self.request)
        operation(self.get_object())
        node = self.get_serializer(self.get_object())
        return Response(node.data, status=status.HTTP_202_ACCEPTED)


class GpuViewSet(mixins.ListModelMixin, GenericViewSet[Gpu]):
    """All GPUs of all nodes, with their health and whether an instance has them."""

    read_scope = write_scope = Scope.FLEET
    permission_classes = OPERATORS
    serializer_class = GpuDetail
    page_order = ("uuid",)

    def get_queryset(self) -> QuerySet[Gpu]:
        held = Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None)
        return Gpu.objects.select_related("node").annotate(held=Exists(held))


class JoinTokenView(APIView):
    read_scope = write_scope = Scope.FLEET
    permission_classes = OPERATORS

    @extend_schema(
        request=Nothing, responses={201: NewJoinToken}, parameters=[IDEMPOTENCY_KEY], tags=["fleet"]
    )
    @idempotent(never_stored=("secret", "command"))
    def post(self, request: Request) -> Response:
        """A one-use secret with which one machine becomes a node. It is shown once."""
        parsed(Nothing, request)
        token, secret = fleet.create_join_token(by=request.user, now=timezone.now())  # type: ignore[arg-type]
        context = {"secret": secret, "command": fleet.join_command(secret)}
        return Response(NewJoinToken(token, context=context).data, status=status.HTTP_201_CREATED)
