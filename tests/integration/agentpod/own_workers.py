"""Worker classes as users write them."""

from typing import Any

from agentpod.roles.worker import WorkerServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb


class Counting(WorkerServicer):
    """Counts its rollouts."""

    collected = 0

    async def CollectRollout(self, request: pb.CollectRolloutRequest, context: Any) -> pb.CollectRolloutResponse:
        """Collects a rollout."""
        Counting.collected += 1
        return await super().CollectRollout(request, context)


class Raising(WorkerServicer):
    """Has a defect."""

    async def CollectRollout(self, request: pb.CollectRolloutRequest, context: Any) -> pb.CollectRolloutResponse:
        """Divides by zero."""
        raise ZeroDivisionError("steps / 0")


class Exaggerating(WorkerServicer):
    """Reports more steps than it took."""

    async def CollectRollout(self, request: pb.CollectRolloutRequest, context: Any) -> pb.CollectRolloutResponse:
        """Collects a rollout."""
        answer = await super().CollectRollout(request, context)
        answer.environment_steps += 1
        return answer


class Plain:
    """Is no worker."""
