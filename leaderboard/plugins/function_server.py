"""Serves a generator or updater function as an EvolutionService: `python -m leaderboard.plugins.function_server`.

The leaderboard starts this process through podrace.plugins.child. The function takes the request message and returns
the response message. A request without a tournament id only checks that the function can be imported: the function is
not called.
"""

import sys
from typing import Any

import grpc.aio

from podrace import service
from podrace.errors import InvalidArgument, Unimplemented
from podrace.evolution.v1 import evolution_pb2 as pb
from podrace.evolution.v1 import evolution_pb2_grpc as pb_grpc
from podrace.plugins import server
from podrace.plugins.server import ChildConfig, LoadedFunction
from podrace.processes import group_reaper
from podrace.rpc import Service

PROGRAM = "leaderboard.plugins.function_server"
Context = grpc.aio.ServicerContext[Any, Any]


class EvolutionServicer(pb_grpc.EvolutionServiceServicer):
    """Calls the function for the one method of its kind of plugin; the contract describes the methods."""

    def __init__(self, function: LoadedFunction, kind: str) -> None:
        self._function, self._kind = function, kind

    async def ProposeAgent(self, request: pb.ProposeAgentRequest, context: Context) -> pb.ProposeAgentResponse:
        """Calls a generator; see the contract."""
        answer: pb.ProposeAgentResponse = await self._call("generator", request, pb.ProposeAgentResponse)
        return answer

    async def JudgeCandidate(self, request: pb.JudgeCandidateRequest, context: Context) -> pb.JudgeCandidateResponse:
        """Calls an updater; see the contract."""
        answer: pb.JudgeCandidateResponse = await self._call("updater", request, pb.JudgeCandidateResponse)
        return answer

    async def _call(self, kind: str, request: Any, answer_type: type[Any]) -> Any:
        if kind != self._kind:
            raise Unimplemented(f"{self._function.address} is the {self._kind}")
        self._function.check()
        if not request.tournament_id:
            return answer_type()
        answer = await self._function.run(self._function, request)
        if not isinstance(answer, answer_type):
            raise InvalidArgument(f"the function returned {type(answer).__name__}, expected {answer_type.__name__}")
        return answer


async def serve(config: ChildConfig) -> None:
    """Serves one function until the leaderboard is gone.

    Raises:
        PodraceError: The process cannot start.
    """

    def make_service(function: LoadedFunction) -> Service:
        descriptor = pb.DESCRIPTOR.services_by_name["EvolutionService"]
        servicer = EvolutionServicer(function, config.kind)
        return Service(descriptor, pb_grpc.add_EvolutionServiceServicer_to_server, servicer)

    await server.serve(config, make_service)


if __name__ == "__main__":
    # A fork of this process, so it comes before any thread is started.
    group_reaper.reap_group_after_this_process()
    sys.exit(service.run(PROGRAM, ChildConfig, serve, sys.argv[1:]))
