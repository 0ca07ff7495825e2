"""Asks the roles of a learner what they do, over separate channels."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentpod.config import PodConfig, learner_role
from agentpod.liveness.role_watch import RoleAnswer
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import PodraceError, Unimplemented
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_IDLE

POLL_DEADLINE_SECONDS = 2.0


class RolePolls:
    """Polls the workers of a learner; for the leader, also the evaluator and the followers on its host.

    polls = RolePolls(config, learner=0)
    answers = await polls.poll()
    await polls.close()
    """

    def __init__(
        self, config: PodConfig, learner: int = 0, *, calls: Callable[[], Mapping[str, RoleAnswer | None]] = dict
    ) -> None:
        """Creates the channels, which connect on first use.

        Args:
            config: Configuration of the pod.
            learner: Number of the learner within the pod; the leader is 0.
            calls: Returns the answers of roles that call this learner, because it cannot poll them.
        """
        self._calls = calls
        workers = config.workers_of(learner)
        others: tuple[str, ...] = ()
        followers: tuple[str, ...] = ()
        if learner == 0:
            others = ("evaluator",)
            followers = tuple(map(learner_role, range(1, config.learners_here)))
        self._channels = {
            role: rpc.connect(
                config.address(role),
                owner=config.user_code_uid if config.is_other_user(role) else None,
                third_party=config.address(role) == config.worker_address,
            )
            for role in (*workers, *others, *followers)
        }
        self._methods: dict[str, tuple[Any, Any]] = {}
        for role in workers:
            stub: Any = pb_grpc.WorkerServiceStub(self._channels[role])
            self._methods[role] = stub.GetWorker, pb.GetWorkerRequest()
        for role in others:
            stub = pb_grpc.EvaluatorServiceStub(self._channels[role])
            self._methods[role] = stub.GetEvaluator, pb.GetEvaluatorRequest()
        for role in followers:
            stub = health_pb2_grpc.HealthStub(self._channels[role])
            self._methods[role] = stub.Check, health_pb2.HealthCheckRequest()

    async def poll(self) -> Mapping[str, RoleAnswer | None]:
        """Returns the answer of each role that can be watched; None if it does not answer."""
        roles = list(self._methods)
        answers = await asyncio.gather(*(self._poll_one(role) for role in roles))
        polled = {role: answer for role, answer in zip(roles, answers, strict=True) if role in self._methods}
        return {**polled, **self._calls()}

    async def _poll_one(self, role: str) -> RoleAnswer | None:
        method, request = self._methods[role]
        try:
            answer = await rpc.call(method, request, deadline_seconds=POLL_DEADLINE_SECONDS)
        except Unimplemented:
            # A role of a third party, which reports nothing.
            del self._methods[role]
            return None
        except PodraceError:
            return None
        if isinstance(answer, health_pb2.HealthCheckResponse):
            return RoleAnswer(ROLE_PHASE_IDLE, 0)
        return RoleAnswer(answer.progress.phase, answer.progress.counter)

    async def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels.values():
            await channel.close()
