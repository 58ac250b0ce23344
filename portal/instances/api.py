"""The API of what is rented: parse → one operation → render."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from billing import metering
from portal.accounts.authentication import acting_member, member_for
from portal.accounts.idempotency import idempotent, key_of
from portal.accounts.models import Member, SshKey
from portal.accounts.roles import Scope
from portal.api.money import money
from portal.api.schema import IDEMPOTENCY_KEY
from portal.api.strict import Nothing, parsed
from portal.catalog.models import Image, Plan
from portal.errors import Conflict
from portal.instances import queue
from portal.instances.models import Instance, InstanceEvent
from portal.instances.operations import admission, ending
from portal.instances.operations.admission import LaunchRequest
from portal.instances.quote import quote
from portal.instances.serializers import (
    CostDetail,
    EventDetail,
    InstanceDetail,
    LaunchBody,
    PreflightDetail,
    QueueDetail,
    preflight,
    rendered,
)


class LaunchKeyReused(Conflict):
    code = "idempotency_key_reused"


class InstanceViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Instance]):
    """Reads are generic; what a member may not see does not exist: 404, never 403."""

    read_scope = Scope.READ
    write_scope = Scope.INSTANCES
    throttle_scopes = {"create": "launch"}
    serializer_class = InstanceDetail
    lookup_value_converter = "uuid"
    page_order = ("-queued_at", "pk")

    def get_queryset(self) -> QuerySet[Instance]:
        team = acting_member(self.request).team
        return Instance.objects.for_team(team).select_related("plan", "image")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The team's instances, ended ones too; the newest in the queue first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(_rendered(*page))

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One instance, and what it has cost so far."""
        return Response(_rendered(self.get_object())[0])

    @extend_schema(
        request=LaunchBody,
        responses={201: InstanceDetail, 200: InstanceDetail},
        parameters=[IDEMPOTENCY_KEY],
    )
    @idempotent()
    def create(self, request: Request) -> Response:
        """Launch: check quota and funds, set an hour's money aside, and join the queue.

        201 for a new instance; 200 where this key launched it before.
        """
        body = parsed(LaunchBody, request)
        actor = member_for(request, body.get("team"))
        wanted = _launch_request(body, actor)
        instance, created = admission.launch(
            actor=actor,
            request=wanted,
            launch_key=key_of(request) or str(uuid4()),
            now=timezone.now(),
        )
        if created:
            # What was launched this moment has cost nothing yet.
            return Response(rendered(instance, cost_micros=0), status=status.HTTP_201_CREATED)
        _check_same(instance, wanted, actor)
        return Response(_rendered(instance)[0])

    @extend_schema(request=Nothing, responses={202: InstanceDetail})
    @action(detail=True, methods=["post"])
    def stop(self, request: Request, pk: UUID) -> Response:
        """Ask it to stop; its meter closes now, and it can be started again."""
        return self._operate(ending.stop)

    @extend_schema(request=Nothing, responses={202: InstanceDetail})
    @action(detail=True, methods=["post"])
    def start(self, request: Request, pk: UUID) -> Response:
        """Put it back in the queue, with the same id, at today's price."""
        return self._operate(admission.start)

    @extend_schema(request=Nothing, responses={202: InstanceDetail})
    @action(detail=True, methods=["post"])
    def terminate(self, request: Request, pk: UUID) -> Response:
        """Ask it to end for good; its meter closes now."""
        return self._operate(ending.terminate)

    @extend_schema(responses=CostDetail)
    @action(detail=True)
    def cost(self, request: Request, pk: UUID) -> Response:
        """What it has cost, to the second, and the intervals behind the sum."""
        cost = metering.cost_of(reference=self.get_object().pk, now=timezone.now())
        detail = CostDetail(
            {
                "cost": money(cost.total_micros, running=True),
                "seconds": cost.seconds,
                "burn_per_hour": money(cost.burn_micros_per_hour),
                "intervals": cost.lines,
            }
        )
        return Response(detail.data)

    def _operate(self, operation: Callable[..., Instance]) -> Response:
        parsed(Nothing, self.request)
        instance = operation(
            actor=acting_member(self.request), instance=self.get_object(), now=timezone.now()
        )
        return Response(_rendered(instance)[0], status=status.HTTP_202_ACCEPTED)


class PreflightView(APIView):
    read_scope = write_scope = Scope.READ

    @extend_schema(tags=["instances"], request=LaunchBody, responses=PreflightDetail)
    def post(self, request: Request) -> Response:
        """What a launch with this body would mean now: price, runway, room, or its refusal.

        Nothing is launched or set aside.
        """
        body = parsed(LaunchBody, request)
        actor = member_for(request, body.get("team"))
        quoted = quote(actor=actor, request=_launch_request(body, actor), now=timezone.now())
        return Response(preflight(quoted))


class EventViewSet(mixins.ListModelMixin, GenericViewSet[InstanceEvent]):
    """The events of one instance."""

    read_scope = write_scope = Scope.READ
    serializer_class = EventDetail
    page_order = ("pk",)

    def get_queryset(self) -> QuerySet[InstanceEvent]:
        instance = get_object_or_404(
            Instance.objects.for_team(acting_member(self.request).team).only("pk"),
            pk=self.kwargs["pk"],
        )
        return InstanceEvent.objects.filter(instance=instance)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Why the instance moved, from its launch on."""
        page = self.paginate_queryset(self.get_queryset()) or []
        team = acting_member(request).team_id
        members = Member.objects.filter(team=team).values_list("user_id", "user__email")
        context = {"team_emails": dict(members)}
        return self.get_paginated_response(EventDetail(page, many=True, context=context).data)


class QueueView(APIView):
    read_scope = write_scope = Scope.READ

    @extend_schema(tags=["queue"], responses=QueueDetail)
    def get(self, request: Request) -> Response:
        """What waits for GPUs: the first 200 places, and all of the team's own."""
        return Response(QueueDetail(queue.seen_by(acting_member(request).team)).data)


def _rendered(*instances: Instance) -> list[dict[str, Any]]:
    costs = metering.costs_of(references=[i.pk for i in instances], now=timezone.now())
    return [rendered(instance, cost_micros=costs[instance.pk]) for instance in instances]


def _launch_request(body: dict[str, Any], actor: Member) -> LaunchRequest:
    """`body` with what it names looked up. Raises ValidationError for what there is not."""
    plan = next(iter(Plan.objects.filter(sku=body["plan"])), None)
    image = next(iter(Image.objects.filter(slug=body["image"])), None)
    if plan is None or image is None:
        absent = {"plan": plan, "image": image}
        raise ValidationError({name: ["No such " + name] for name in absent if not absent[name]})
    return LaunchRequest(
        plan=plan,
        image=image,
        name=body.get("name", ""),
        pricing=body["pricing"],
        command=tuple(body["command"]),
        env=body["env"],
        ports=tuple(body["ports"]),
        ssh_keys=_public_keys(actor, body.get("ssh_keys")),
    )


def _public_keys(actor: Member, chosen: list[int] | None) -> tuple[str, ...]:
    """The chosen keys, or all where none is named. Raises ValidationError for another's key."""
    if chosen == []:
        return ()
    keys = dict(SshKey.objects.filter(user=actor.user_id).values_list("pk", "public_key"))
    if chosen is None:
        chosen = sorted(keys)
    if not set(chosen) <= set(keys):
        raise ValidationError({"ssh_keys": ["You have no such key."]})
    return tuple(keys[pk] for pk in chosen)


def _check_same(instance: Instance, wanted: LaunchRequest, actor: Member) -> None:
    """A launch key outlives the day that replies are kept: what it launched may be another thing.

    Raises LaunchKeyReused, so that nobody takes a colleague's instance for their own.
    """
    same = instance.launched_by_id == actor.pk and (instance.plan_id, instance.image_id) == (
        wanted.plan.pk,
        wanted.image.pk,
    )
    if not same:
        raise LaunchKeyReused(
            "This Idempotency-Key launched another instance before.",
            next_step="Draw a new key for a new request.",
        )
