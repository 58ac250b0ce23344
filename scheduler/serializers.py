"""Nodes and GPUs as the API gives them to operators."""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from scheduler.models import Gpu, JoinToken, Node, NodeState


class NodeDetail(serializers.ModelSerializer[Node]):
    """`context["now"]` is the moment its state is judged at."""

    state = serializers.SerializerMethodField()
    gpus = serializers.IntegerField(source="gpus_known", help_text="In its last inventory.")
    gpus_in_use = serializers.IntegerField(source="gpus_held")

    class Meta:
        model = Node
        fields = (
            *("id", "name", "state", "gpus", "gpus_in_use", "vcpus", "memory_mib"),
            *("driver_version", "agent_version", "runtime", "simulated", "simulated_gpus"),
            *("enrolled_at", "last_seen_at", "cordoned_at", "retired_at"),
        )

    def get_state(self, node: Node) -> NodeState:
        """ready, cordoned, suspect, unreachable or retired."""
        now: datetime = self.context["now"]
        return node.state_at(now)


class GpuDetail(serializers.ModelSerializer[Gpu]):
    node = serializers.CharField(source="node.name")
    in_use = serializers.BooleanField(source="held")

    class Meta:
        model = Gpu
        fields = ("uuid", "node", "model", "memory_mib", "present", "healthy", "problem", "in_use")


class NewJoinToken(serializers.ModelSerializer[JoinToken]):
    """`secret` is shown once; `command` is what the machine runs with it."""

    secret = serializers.SerializerMethodField()
    command = serializers.SerializerMethodField()

    class Meta:
        model = JoinToken
        fields = ("id", "secret", "command", "expires_at")

    def get_secret(self, token: Any) -> str:
        return str(self.context["secret"])

    def get_command(self, token: Any) -> str:
        return str(self.context["command"])
