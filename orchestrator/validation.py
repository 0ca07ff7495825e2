"""Checks everything about a specification that can be known before its tournament is created.

The orchestrator itself checks values, limits and resources, and asks whether services answer. A launcher that can try
out environments does so in another process, because the orchestrator imports neither torch nor user code.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.config import Config, store_access_of
from orchestrator.decisions.resources import Resources
from orchestrator.decisions.specification_fit import unfit
from orchestrator.inspection_queue import InspectionQueue
from orchestrator.launchers import EXTERNAL
from orchestrator.launchers.base import Inspector, Launcher
from orchestrator.launchers.pod_settings import unstartable
from podrace import rpc
from podrace.access.authenticators.unix_socket import local_user
from podrace.access.ownership import Ownership, ownership_for
from podrace.access.principal import Principal
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.assignment_store import GRANTED
from podrace.errors import DeadlineExceeded, FieldViolation, InvalidArgument, PodraceError, Unavailable
from podrace.limits.names import ISAAC
from podrace.limits.specification import check_specification
from podrace.plugins.address import GrpcService, parse
from podrace.specification.messages import bad_spec
from podrace.specification.resolve import resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ANSWER_SECONDS = 3.0
"""Time limit for a service to answer, or for the store to be written and read."""


@dataclass
class Findings:
    """What is wrong with a specification, and what could not be checked."""

    violations: list[FieldViolation] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def refuse(self) -> None:
        """Raises InvalidArgument with all violations (BAD_SPEC); returns if there are none."""
        if self.violations:
            ordered = sorted(self.violations, key=lambda violation: violation.field)
            raise bad_spec("; ".join(map(str, ordered)), ordered)


class Validation:
    """Checks specifications for one orchestrator.

    validation = Validation(config, launcher)
    resolved, unchecked = await validation.check(spec)     # raises InvalidArgument with all that is wrong
    """

    def __init__(self, config: Config, launcher: asyncio.Future[Launcher]) -> None:
        """Prepares the checks.

        Args:
            config: Configuration of the orchestrator.
            launcher: The launcher, once it is open.
        """
        self._config, self._launcher, self._queue = config, launcher, InspectionQueue(config.quota)

    async def check(self, given: TournamentSpec, caller: Principal | None = None) -> tuple[TournamentSpec, list[str]]:
        """Checks a specification.

        Args:
            given: The specification.
            caller: The caller; None: the user of this process.

        Returns:
            The resolved specification, and what could not be checked and why.

        Raises:
            InvalidArgument: Everything that is wrong, by key (BAD_SPEC).
            ResourceExhausted: Too many specifications are being checked (QUOTA_EXCEEDED).
        """
        findings, resolved = Findings(), TournamentSpec()
        try:
            resolved = resolve(given)
            check_specification(resolved, self._config.allow)
        except InvalidArgument as error:
            findings.violations += error.violations or [FieldViolation("spec", error.message)]
            await self._check_mesh(findings)
        else:
            findings.violations += unstartable(resolved.pod, self._config.launcher, self._config.launchers)
            launcher = await asyncio.shield(self._launcher)
            await asyncio.gather(
                self._check_mesh(findings),
                self._check_resources(resolved, launcher, findings),
                self._check_environment(resolved, launcher, ownership_for(caller or local_user()), findings),
                *(_check_service(key, target, findings) for key, target in _services(resolved)),
            )
        findings.refuse()
        return resolved, sorted(findings.unchecked)

    async def _check_mesh(self, findings: Findings) -> None:
        """Checks the services that every tournament needs, which no key of a specification names."""
        config = self._config
        try:
            await rpc.wait_until_serving(config.leaderboard, deadline_seconds=ANSWER_SECONDS)
        except PodraceError as error:
            findings.violations.append(FieldViolation("leaderboard", f"(of the mesh) {error.message}"))
        if store_access_of(config) == GRANTED:
            findings.unchecked.append(f"store {config.store}: only the leaderboard has access to it")
            return
        try:
            await asyncio.to_thread(open_store, config.store, deadline_seconds=ANSWER_SECONDS)
        except PodraceError as error:
            findings.violations.append(FieldViolation("store", f"(of the mesh) {error.message}"))

    async def _check_resources(self, spec: TournamentSpec, launcher: Launcher, findings: Findings) -> None:
        if self._config.launcher == EXTERNAL:
            findings.unchecked.append("pod: pods are started elsewhere, so their resources are not known")
            return
        pod = Resources(spec.pod.cores, spec.pod.memory_bytes, spec.pod.gpus, spec.pod.hosts)
        try:
            findings.violations += unfit(pod, await launcher.capacity())
        except Unavailable as error:
            findings.unchecked.append(f"pod: the capacity is not known: {error.message}")

    async def _check_environment(
        self, spec: TournamentSpec, launcher: Launcher, owner: Ownership, findings: Findings
    ) -> None:
        if not isinstance(launcher, Inspector):
            reason = f"the launcher {self._config.launcher!r} cannot try it out before a pod starts"
            findings.unchecked.append(f"environment.id = {spec.environment.id!r}: {reason}")
            return
        if spec.environment.id.startswith(ISAAC):
            reason = "it needs a GPU, and is tried out without one"
            findings.unchecked.append(f"environment.id = {spec.environment.id!r}: {reason}")
            return
        try:
            with self._queue.place(owner):
                findings.violations += await launcher.inspect(spec)
        except DeadlineExceeded as error:
            findings.unchecked.append(f"environment.id = {spec.environment.id!r}: {error.message}")
        except Unavailable as error:
            findings.violations.append(FieldViolation("environment.id", f"= {spec.environment.id!r}: {error.message}"))


async def _check_service(key: str, target: str, findings: Findings) -> None:
    """Connects to a service that the specification names; it gets no token of the mesh."""
    try:
        async with rpc.connect(target) as channel:
            await rpc.wait_until_ready(channel, ANSWER_SECONDS)
    except PodraceError:
        problem = f"= 'grpc://{target}': no connection within {ANSWER_SECONDS:g} s; is the service running?"
        findings.violations.append(FieldViolation(key, problem))


def _services(spec: TournamentSpec) -> Iterator[tuple[str, str]]:
    """Yields the services that a specification names, by key, except environments, which are tried out."""
    named = {
        "evaluation.evaluator": spec.evaluation.evaluator,
        "evolution.generator": spec.evolution.generator,
        "evolution.updater": spec.evolution.updater,
    }
    for key, address in named.items():
        if isinstance(service := parse(address), GrpcService):
            yield key, service.target
