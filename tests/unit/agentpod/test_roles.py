"""Which plane connects the roles of a pod: the first that passes its self-test, and none in silence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentpod.algorithms.base import Memory
from agentpod.config import PodConfig
from agentpod.policy import NetworkSpec
from agentpod.roles import Roles, Session
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import FailedPrecondition, Unimplemented
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensors.memory import MemoryPlane
from podrace.tensors.plane import Plane
from podrace.tensors.probe import read_probe
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec


class Named(MemoryPlane):
    """A plane with a name of its own."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.scheme = scheme


class Connected(Roles):
    """Roles whose other end is here, and sees only some planes."""

    def __init__(self, planes: Sequence[Plane], sees: set[str]) -> None:
        config = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), layout="separate")
        super().__init__(config, planes)
        self._sees, self.asked = sees, []

    async def _wait_for_roles(self) -> None:
        pass

    def _open_calls(self, session: Session, probe: TensorRef) -> list[Any]:
        plane = next(plane for plane in self._planes if probe.plane_uri in getattr(plane, "_blocks", {}))
        self.asked.append(plane.scheme)

        async def answer() -> pb.OpenWorkerResponse:
            if plane.scheme == "unknown":
                raise FailedPrecondition("plane 'unknown' is required, this process offers only: others")
            sees = plane.scheme in self._sees
            return pb.OpenWorkerResponse(probe_sum=read_probe(plane.open([probe])) if sees else 0.0)

        return [answer(), answer()]


async def opened(roles: Connected) -> None:
    session = Session("1.1", EnvironmentSpec(), EnvironmentSpec(), NetworkSpec(), Memory(8), seed=3, rollouts=0)
    await roles._open_on_a_plane(session)


async def test_the_first_plane_that_both_ends_see_is_taken_and_kept() -> None:
    planes = [Named("unknown"), Named("blind"), Named("shared"), Named("grpc")]
    roles = Connected(planes, sees={"shared", "grpc"})
    assert roles.plane == ""
    await opened(roles)
    await opened(roles)
    assert roles.plane == "shared"
    assert roles.asked == ["unknown", "blind", "shared", "shared"]
    assert not any(plane._blocks for plane in planes), "a probe was left behind"
    await roles.close()


async def test_a_plane_that_is_required_has_no_second_choice() -> None:
    roles = Connected([Named("shared")], sees=set())
    with pytest.raises(Unimplemented, match="no plane connects the roles of this pod: plane 'shared' failed its self-"):
        await opened(roles)
    await roles.close()


async def test_a_plane_that_worked_once_is_not_exchanged_for_another() -> None:
    roles = Connected([Named("shared"), Named("grpc")], sees={"shared", "grpc"})
    await opened(roles)
    roles._sees = {"grpc"}
    with pytest.raises(Unimplemented, match="shared"):
        await opened(roles)
    await roles.close()
