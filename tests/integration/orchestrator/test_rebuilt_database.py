"""An orchestrator that lost its database without a backup asks the leaderboard, and continues with running pods."""

from typing import Any

import pytest

from orchestrator.decisions.restoration import EPOCHS
from orchestrator.leaderboard_client import KnownAgent
from orchestrator.rebuilding.derivation import STOPPED, derived_records, epoch_of_restoration
from orchestrator.rebuilding.rebuild import rebuild
from orchestrator.state.records import CANCELLED, RUNNING, WorkPhase
from podrace.errors import FailedPrecondition, NotFound, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, KnownTournament
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class Board:
    """What a leaderboard knows."""

    def __init__(self, known: KnownTournament, agents: list[KnownAgent], highest: int) -> None:
        self.known, self.agents, self.highest, self.failures = known, agents, highest, 0

    async def list_known_tournaments(self) -> tuple[list[KnownTournament], int]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("starting")
        return [self.known], self.highest

    async def list_agents(self, tournament_id: str) -> list[KnownAgent]:
        assert tournament_id == self.known.tournament_id
        return self.agents


def known_agent(name: str, number: int, steps: int, **fields: Any) -> KnownAgent:
    agent = Agent(agent_id=f"{name}-a{number}", tournament_id=name, number=number, algorithm="ppo", **fields)
    agent.create_time.FromSeconds(1_700_000_000 + number)
    return KnownAgent(agent, steps)


async def lost(open_mesh: Any, spec: Any) -> tuple[Any, str, list[pb.Assignment], Board]:
    """A mesh that has lost its database while two pods train; the leaderboard knows the agent of the first one."""
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.cycle()
        works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
        known = KnownTournament(tournament_id=name, spec=(await mesh.get(name)).spec, owner="ada")
        return mesh.launcher, name, works, Board(known, [known_agent(name, 0, 100)], 1)


@pytest.fixture
def forget(tmp_path: Any) -> Any:
    def remove() -> None:
        for file in tmp_path.glob("orchestrator.sqlite*"):
            file.unlink()

    return remove


async def test_pods_keep_their_agents_and_the_tournament_runs_on(open_mesh: Any, spec: Any, forget: Any) -> None:
    launcher, name, works, board = await lost(open_mesh, spec)
    forget()
    async with open_mesh(launcher=launcher) as mesh:
        assert await rebuild(mesh.state, board, "") == 1  # type: ignore[arg-type]
    async with open_mesh(launcher=launcher) as mesh:
        assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (CANCELLED, STOPPED)
        for number, work in enumerate(works):
            answer = await mesh.renew(work, f"{name}-p{number}", environment_steps=200 + number)
            assert (answer.directive, answer.reason) == (pb.DIRECTIVE_CONTINUE, "")
        await mesh.cycle()
        found = await mesh.get(name)
        assert (found.state, found.environment_steps) == (RUNNING, 401)
        kinds = await mesh.kinds(name)
        assert kinds.count("lease_adopted") == 2
        assert {"tournament_rebuilt", "tournament_resumed", "pod_adopted"} <= set(kinds)
        assert not {"pod_draining", "pod_unknown", "pod_started"} & set(kinds)
        # An agent of the second pod, which had not published, was known by its lease alone.
        assert {pod.agent_id for pod in await mesh.pods(name)} == {work.train.agent_id for work in works}
        await mesh.complete(works[0], pod_id=f"{name}-p0")
        assert (await mesh.assigned(f"{name}-p0")).train.number == 2


async def test_a_pod_without_a_lease_continues_the_tournament_too(open_mesh: Any, spec: Any, forget: Any) -> None:
    launcher, name, _, board = await lost(open_mesh, spec)
    forget()
    async with open_mesh(launcher=launcher) as mesh:
        await rebuild(mesh.state, board, "")  # type: ignore[arg-type]
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        assert (await mesh.get(name)).state == RUNNING
        work = await mesh.assigned(f"{name}-p0")
        assert (work.train.agent_id, work.lease_epoch) == (f"{name}-a0", EPOCHS + 1)


async def test_a_tournament_for_which_no_pod_works_stays_stopped_until_it_is_resumed(
    open_mesh: Any, spec: Any, forget: Any
) -> None:
    launcher, name, works, board = await lost(open_mesh, spec)
    launcher.pods.clear()
    board.failures = 1
    forget()
    async with open_mesh(launcher=launcher) as mesh:
        assert await rebuild(mesh.state, board, "") == 1  # type: ignore[arg-type]
        assert await rebuild(mesh.state, board, "") == 0, "a database with tournaments is left as it is"
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.cycle()
        assert (await mesh.get(name)).state == CANCELLED
        assert not await mesh.pods(name)
        await mesh.resume(name)
        await mesh.cycle()
        assert (await mesh.get(name)).state == RUNNING
        (pod, *_) = [pod.pod_id for pod in await mesh.pods(name)]
        assert pod not in (f"{name}-p0",), "no pod gets a name that was used"
        assert (await mesh.assigned(pod)).train.agent_id == works[0].train.agent_id
        with pytest.raises((FailedPrecondition, NotFound)):
            await mesh.renew(works[0], f"{name}-p0")


def test_what_the_leaderboard_knows_proves_records() -> None:
    known = KnownTournament(tournament_id="t-1")
    known.spec.assignment.environment_steps = 100
    agents = [
        known_agent("t-1", 0, 100, pod_id="t-1-p3"),
        known_agent("t-1", 1, 99),
        known_agent("t-1", 4, 100, assignment_environment_steps=400),
    ]
    agents[1].agent.running_duration.FromSeconds(30)
    derived = derived_records(known, agents, 7, "mesh", "user", 2e9)
    assert [one.phase for one in derived.agents] == [WorkPhase.FINISHED, WorkPhase.UNFINISHED, WorkPhase.UNFINISHED]
    assert [one.lease_epoch for one in derived.agents] == [0, 0, 0]
    tournament = derived.tournament
    assert (tournament.next_agent, tournament.next_pod, tournament.sequence, tournament.mesh_id) == (5, 4, 7, "mesh")
    assert (tournament.running_seconds, tournament.create_time) == (30.0, 1_700_000_000.0)
    assert (derived.ownership.owner, derived.ownership.namespace) == ("user", "")
    known.spec.synchronous, known.spec.pool.maximum_pods = True, 4
    assert derived_records(known, agents, 1, "", "", 0.0).tournament.next_agent == 8, "rounds are complete"


@pytest.mark.parametrize(("highest", "epoch"), [(0, 1), (1, 1), (EPOCHS, 2), (3 * EPOCHS + 5, 4)])
def test_no_lease_epoch_is_given_twice(highest: int, epoch: int) -> None:
    assert epoch_of_restoration(highest) == epoch
    assert epoch * EPOCHS > highest


async def test_a_tournament_that_is_being_deleted_does_not_come_back(open_mesh: Any, spec: Any, forget: Any) -> None:
    launcher, name, _, board = await lost(open_mesh, spec)
    forget()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.state.transact(lambda transaction: transaction.execute("INSERT INTO deletions VALUES (?)", name))
        assert await rebuild(mesh.state, board, "") == 0  # type: ignore[arg-type]
