"""What `CreateTournament.validate_only` finds, with a launcher whose answers a test sets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import validation
from orchestrator.config import Config
from orchestrator.decisions.quotas import Quotas
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.options import DockerOptions, KubernetesOptions, LauncherOptions
from orchestrator.validation import Validation
from podrace import rpc
from podrace.access.principal import Principal
from podrace.errors import (
    BAD_SPEC,
    DeadlineExceeded,
    FieldViolation,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from podrace.limits.config import EVERYTHING
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

GIB = 1 << 30


@dataclass
class FakeLauncher:
    """A launcher on a machine of two cores that finds in an environment what a test says."""

    found: Sequence[FieldViolation] = ()
    broken: Exception | None = None
    inspected: list[TournamentSpec] = field(default_factory=list)
    done: asyncio.Event | None = None

    async def capacity(self) -> Capacity:
        return Capacity(Resources(2.0, 8 * GIB, 0), 8 * GIB)

    async def inspect(self, spec: TournamentSpec) -> Sequence[FieldViolation]:
        self.inspected.append(spec)
        if self.done:
            await self.done.wait()
        if self.broken:
            raise self.broken
        return self.found


class BlindLauncher:
    """A launcher that cannot try out environments."""

    capacity = FakeLauncher.capacity


@pytest.fixture
async def config(tmp_path: Path) -> AsyncIterator[Config]:
    tmp_path.chmod(0o700)
    leaderboard = await rpc.Server.start(rpc.ServerConfig(listen=f"unix:{tmp_path}/l", grace_seconds=0.0), [])
    yield Config(leaderboard=leaderboard.address, store=str(tmp_path / "store"))
    await leaderboard.drain()


def spec(**fields: Any) -> TournamentSpec:
    made = TournamentSpec(**fields)
    made.environment.id = made.environment.id or "CartPole-v1"
    made.algorithms["ppo"].SetInParent()
    made.objective.target_return = 475.0
    return made


async def check(config: Config, launcher: Any, given: TournamentSpec) -> list[str]:
    """Checks a specification, and returns what was not checked."""
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    opened.set_result(launcher)
    resolved, unchecked = await Validation(config, opened).check(given)
    assert resolved.algorithms["ppo"].hyperparameters["discount"].value.number_value == 0.99
    return unchecked


async def refused(config: Config, launcher: Any, given: TournamentSpec) -> dict[str, str]:
    """Checks a specification that has to be refused, and returns the problems by key."""
    with pytest.raises(InvalidArgument) as caught:
        await check(config, launcher, given)
    assert caught.value.reason == BAD_SPEC
    return {one.field: one.problem for one in caught.value.violations}


async def test_the_checks_of_one_owner_do_not_keep_others_waiting(config: Config) -> None:
    """Fails on the earlier behaviour: any number of checks of one owner were queued before those of others."""
    done, launcher = asyncio.Event(), FakeLauncher()
    launcher.done = done
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    opened.set_result(launcher)
    checks = Validation(replace(config, quota=Quotas(inspections=2, all_inspections=3)), opened)
    alice, carol, dave = (Principal(name, frozenset()) for name in ("alice", "carol", "dave"))
    answers = [asyncio.create_task(checks.check(spec(), alice)) for _ in range(2)]
    while len(launcher.inspected) < 2:
        await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match=r"2 specifications of alice .* quota.inspections is 2"):
        await checks.check(spec(), alice)
    answers.append(asyncio.create_task(checks.check(spec(), carol)))
    while len(launcher.inspected) < 3:
        await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match=r"3 specifications of all owners .* quota.all_inspections is 3"):
        await checks.check(spec(), dave)
    answers.pop().cancel()
    await asyncio.wait([asyncio.create_task(asyncio.sleep(0))])
    done.set()
    await asyncio.gather(*answers)
    await checks.check(spec(), alice)
    await checks.check(spec(), dave)


async def test_a_specification_that_works_is_returned_resolved(config: Config) -> None:
    launcher = FakeLauncher()
    assert await check(config, launcher, spec()) == []
    assert launcher.inspected[0].pool.minimum_pods == 1


async def test_all_that_is_wrong_is_listed_at_once_by_key(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "ANSWER_SECONDS", 0.1)
    given = spec()
    given.pod.gpus, given.pod.cores = 64, 2.0
    given.evolution.generator = "grpc://unix:/nowhere/g.sock"
    allowed = Config(leaderboard="unix:/nowhere/l.sock", store="/proc/nowhere", allow=EVERYTHING)
    found = await refused(allowed, FakeLauncher([FieldViolation("algorithms.ppo", "does not suit")]), given)
    assert sorted(found) == ["algorithms.ppo", "evolution.generator", "leaderboard", "pod.gpus", "store"]
    assert "no connection" in found["evolution.generator"]
    assert found["pod.gpus"] == "= 64: a pod needs 64; this machine has 0"


async def test_wrong_values_are_reported_together_with_absent_services(config: Config, tmp_path: Path) -> None:
    given = spec()
    given.pod.workers, given.evaluation.episodes = 0, 0
    launcher = FakeLauncher()
    broken = Config(leaderboard=config.leaderboard, store="/proc/nowhere")
    assert sorted(await refused(broken, launcher, given)) == ["evaluation.episodes", "pod.workers", "store"]
    assert launcher.inspected == [], "an environment is not made from values that are out of bounds"


async def test_what_the_operator_does_not_allow_is_not_tried_out(config: Config) -> None:
    given = spec()
    given.environment.id = "python:mine:make"
    given.evaluation.evaluator = "python:mine:score"
    launcher = FakeLauncher()
    assert sorted(await refused(config, launcher, given)) == ["environment.id", "evaluation.evaluator"]
    assert launcher.inspected == []


async def test_an_environment_that_kills_its_process_is_a_violation(config: Config) -> None:
    found = await refused(config, FakeLauncher(broken=Unavailable("the process was killed by SIGSEGV")), spec())
    assert found == {"environment.id": "= 'CartPole-v1': the process was killed by SIGSEGV"}


async def test_what_cannot_be_checked_is_stated(config: Config) -> None:
    granted = Config(leaderboard=config.leaderboard, store=config.store, launcher="docker")
    unchecked = await check(granted, BlindLauncher(), spec())
    assert [line.split()[0] for line in unchecked] == ["environment.id", "store"]
    assert "cannot try it out" in unchecked[0]


@pytest.mark.parametrize("name", ["isaacgym:Ant", "isaaclab:Isaac-Ant-Direct-v0"])
async def test_a_simulator_that_needs_a_gpu_is_not_tried_out_without_one(config: Config, name: str) -> None:
    launcher = FakeLauncher()
    allowing = Config(leaderboard=config.leaderboard, store=config.store, allow=EVERYTHING)
    unchecked = await check(allowing, launcher, spec(environment={"id": name}))
    assert unchecked == [f"environment.id = '{name}': it needs a GPU, and is tried out without one"]
    assert launcher.inspected == []


async def test_an_environment_that_takes_too_long_is_stated_as_not_checked(config: Config) -> None:
    launcher = FakeLauncher(broken=DeadlineExceeded("the environment was not made within 60 s"))
    assert await check(config, launcher, spec()) == [
        "environment.id = 'CartPole-v1': the environment was not made within 60 s"
    ]


@pytest.mark.parametrize("launcher", ["process", "docker", "kubernetes"])
async def test_what_the_launcher_cannot_start_is_refused_before_the_tournament_is_created(
    config: Config, launcher: str
) -> None:
    given = spec()
    given.pod.image, given.pod.worker = "team/robots:2", "grpc://127.0.0.1:50090"
    here = Config(leaderboard=config.leaderboard, store=config.store, launcher=launcher, allow=EVERYTHING)
    found = await refused(here, FakeLauncher(), given)
    assert sorted(found) == (["pod.image"] if launcher == "process" else ["pod.image", "pod.worker"])
    setting = "starts no containers" if launcher == "process" else f"launchers.{launcher}.images"
    assert setting in found["pod.image"]
    allowing = LauncherOptions(
        docker=DockerOptions(images=("team/*",)), kubernetes=KubernetesOptions(images=("team/*",))
    )
    given.pod.ClearField("worker")
    if launcher != "process":
        allowed = Config(leaderboard=config.leaderboard, store=config.store, launcher=launcher, launchers=allowing)
        await check(allowed, FakeLauncher(), given)
