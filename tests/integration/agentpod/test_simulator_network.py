"""A pod whose simulator is a service trains on after the connection to it broke."""

from collections.abc import AsyncIterator

import pytest
from scripted import until

from benchmarks.connections.fault_proxy import FaultProxy
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.principal import ALL_ROLES, Principal
from podrace.progress_deadlines import ProgressDeadlines
from podrace.rpc import Server, ServerConfig
from simulators.config import Limits
from simulators.service import SimulatorServicer, services

FAST = ProgressDeadlines(floor_seconds=3.0)


class Everyone:
    """Accepts every caller: pods present the token of the user who runs the tests, if there is one."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        return Principal("anyone", frozenset(ALL_ROLES))


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    config = ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await Server.start(config, services(SimulatorServicer(Limits())), guard=Guard([Everyone()]))
    async with FaultProxy(server.address) as proxy:
        # A step takes a few milliseconds, so that the processors are left to others.
        proxy.delay(0.002)
        yield proxy
    await server.drain()


def trained(mesh) -> int:
    renewals = mesh.orchestrator.renewals
    return renewals[-1].progress.policy_version if renewals else 0


def supervised(mesh) -> bool:
    """Whether the deadline of the worker was learned."""
    renewals = mesh.orchestrator.renewals
    roles = {role.role: role for role in renewals[-1].progress.roles} if renewals else {}
    return "worker-0" in roles and 0 < roles["worker-0"].deadline_duration.seconds < 60


@pytest.mark.long
@pytest.mark.parametrize("fault", ["reset", "half_open"])
async def test_the_agent_trains_on_with_a_new_stream(
    mesh, make_spec, make_assignment, fork_server, proxy: FaultProxy, fault: str
):
    spec = make_spec(f"grpc://{proxy.address}", steps=10**8)
    spec.environment.options.update({"id": "cartpole", "plane": "grpc"})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    await fork_server.start(mesh.pod_config("separate", progress=FAST))
    await until(lambda: supervised(mesh), 90)
    before = trained(mesh)
    getattr(proxy, fault)()
    await until(lambda: trained(mesh) > before + 5, 90)
    assert mesh.orchestrator.completed == []
    assert proxy.accepted >= 3, "worker and evaluator each have one stream, and one was replaced"
