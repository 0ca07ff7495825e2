"""Opens what an examination needs, and runs it: the one function that the command calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct

from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.conformance import evaluator, evolution, pod, policies, simulator, slots, worker
from podrace.conformance.calls import check_reachable
from podrace.conformance.examine import CONTRACTS, judge_of, run_parts, tensor_server
from podrace.conformance.findings import Report
from podrace.errors import InvalidArgument
from podrace.plugins.address import parse
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, TournamentSpec

KNOWN_SPACES = {
    "cartpole": (4, 2, False),
    "CartPole-v1": (4, 2, False),
    "pendulum": (3, 1, True),
    "Pendulum-v1": (3, 1, True),
}
"""Elements of an observation, choices or elements of an action, and whether actions are continuous, by environment."""
LONGEST_TOKEN_BYTES = 16384


@dataclass(frozen=True)
class Examination:
    """What to examine, and with what."""

    contract: str
    """One of CONTRACTS."""
    address: str
    """Address of the service; of a pod, the address to listen on."""
    id: str = "cartpole"
    """Simulator to open."""
    options: Struct = field(default_factory=Struct)
    """Options of the simulator, or of the environment."""
    environments: int = 1024
    """Environments of the largest batch of a simulator."""
    environment: str = "CartPole-v1"
    """Environment of an evaluator, a worker or a pod."""
    spaces: tuple[int, int, bool] | None = None
    """Elements of an observation, choices or elements of an action, and whether actions are continuous; None: those of
    KNOWN_SPACES."""
    spec: TournamentSpec | None = None
    """Specification of the tournaments that a generator or updater decides in."""
    listen: str = "127.0.0.1:0"
    """Address of the tensors that an evaluator or a worker reads."""
    insecure: bool = False
    """Whether to listen on an address that other machines reach, without TLS."""
    token: TokenSource | None = None
    """Token to send with every call."""
    deadline_seconds: float = 60.0
    """Longest wait for one answer."""
    most_seconds: float = 300.0
    """Time for the whole examination."""
    lease_seconds: float = 3.0
    """Duration of the leases that a pod gets."""
    store: str = ""
    """Checkpoint store that a pod writes to directly; empty: it uses StoreService."""
    notify: Callable[[str], None] = print
    """Receives what the user has to do meanwhile, in one line."""

    @property
    def connect_seconds(self) -> float:
        """Longest wait for the connection."""
        return min(self.deadline_seconds, self.most_seconds)


async def examine(wanted: Examination) -> Report:
    """Examines a service.

    Raises:
        InvalidArgument: The address or an option is malformed.
        Unavailable: The service cannot be reached, or the own address cannot be used.
    """
    check_address(wanted.address)
    report: Report = await _EXAMINATIONS[wanted.contract](wanted)
    return report


def check_address(address: str) -> None:
    """Checks the form of an address.

    Raises:
        InvalidArgument: It is malformed.
    """
    if parse(f"grpc://{address}") is None:
        raise InvalidArgument(f"ADDRESS = {address!r}: expected host:port or unix:/path")


def read_token(path: Path) -> TokenSource:
    """Reads a token from a file.

    Raises:
        InvalidArgument: The file cannot be read or holds no token.
    """
    try:
        content = path.read_bytes()[: LONGEST_TOKEN_BYTES + 1]
    except OSError as error:
        raise InvalidArgument(f"--token-file {path}: {error.strerror}") from None
    token = content.decode(errors="replace").strip()
    if not token or len(content) > LONGEST_TOKEN_BYTES or not token.isprintable() or len(token.split()) != 1:
        raise InvalidArgument(f"--token-file {path}: expected one token on one line, as `podrace token` prints it")
    return lambda: token


async def _examine_simulator(wanted: Examination) -> Report:
    judge = judge_of("simulator")
    async with rpc.connect(wanted.address, token=wanted.token, third_party=True) as channel:
        await check_reachable(channel, wanted.address, wanted.connect_seconds)
        parts = simulator.parts(
            channel,
            judge,
            id=wanted.id,
            options=wanted.options,
            most_seconds=wanted.deadline_seconds,
            environments=wanted.environments,
        )
        return await run_parts("simulator", wanted.address, judge, parts, most_seconds=wanted.most_seconds)


async def _examine_evolution(wanted: Examination) -> Report:
    judge = judge_of("evolution")
    async with rpc.connect(wanted.address, token=wanted.token, third_party=True) as channel:
        await check_reachable(channel, wanted.address, wanted.connect_seconds)
        parts = evolution.parts(channel, judge, spec=wanted.spec, most_seconds=wanted.deadline_seconds)
        return await run_parts("evolution", wanted.address, judge, parts, most_seconds=wanted.most_seconds)


async def _examine_evaluator(wanted: Examination) -> Report:
    judge, (inputs, outputs, continuous) = judge_of("evaluator"), _spaces(wanted)
    async with (
        rpc.connect(wanted.address, token=wanted.token, third_party=True) as channel,
        tensor_server(wanted.listen, insecure=wanted.insecure) as blocks,
    ):
        await check_reachable(channel, wanted.address, wanted.connect_seconds)
        parts = evaluator.parts(
            channel,
            judge,
            blocks,
            environment=EnvironmentSpec(id=wanted.environment, count=1, options=wanted.options),
            policy=policies.listed(policies.network(), inputs, outputs, continuous=continuous),
            most_seconds=wanted.deadline_seconds,
        )
        return await run_parts("evaluator", wanted.address, judge, parts, most_seconds=wanted.most_seconds)


async def _examine_worker(wanted: Examination) -> Report:
    judge = judge_of("worker")
    async with (
        rpc.connect(wanted.address, token=wanted.token, third_party=True) as channel,
        tensor_server(wanted.listen, insecure=wanted.insecure) as blocks,
    ):
        await check_reachable(channel, wanted.address, wanted.connect_seconds)
        environment = EnvironmentSpec(id=wanted.environment, count=slots.ENVIRONMENTS, options=wanted.options)
        parts = worker.parts(channel, judge, blocks, environment=environment, most_seconds=wanted.deadline_seconds)
        return await run_parts("worker", wanted.address, judge, parts, most_seconds=wanted.most_seconds)


async def _examine_pod(wanted: Examination) -> Report:
    judge = judge_of("pod")
    async with pod.opened(
        judge,
        wanted.address,
        spec=wanted.spec or pod.default_spec(wanted.environment),
        store=wanted.store,
        lease_seconds=wanted.lease_seconds,
        most_seconds=wanted.deadline_seconds,
        insecure=wanted.insecure,
        notify=wanted.notify,
    ) as (address, parts):
        where = f"store {wanted.store}" if wanted.store else "StoreService at the same address"
        wanted.notify(f"start the pod with orchestrator and leaderboard {address}, {where}")
        return await run_parts("pod", address, judge, parts, most_seconds=wanted.most_seconds)


def _spaces(wanted: Examination) -> tuple[int, int, bool]:
    found = wanted.spaces or KNOWN_SPACES.get(wanted.environment)
    if found is None:
        raise InvalidArgument(
            f"--environment {wanted.environment}: its spaces are not known here; state them with --observations and "
            f"--actions, or choose one of {', '.join(sorted(KNOWN_SPACES))}"
        )
    return found


_EXAMINATIONS: dict[str, Callable[[Examination], Any]] = {
    "simulator": _examine_simulator,
    "evolution": _examine_evolution,
    "evaluator": _examine_evaluator,
    "worker": _examine_worker,
    "pod": _examine_pod,
}
assert set(_EXAMINATIONS) == set(CONTRACTS)
