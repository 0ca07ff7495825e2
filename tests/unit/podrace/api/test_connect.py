from typing import Any

import pytest

import podrace
from podrace.errors import NotFound, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_FAILED

NAME = "cartpole-abc123"


@pytest.fixture
def race(mesh: Any) -> Any:
    for number in range(3):
        agent = board_pb.Agent(agent_id=f"{NAME}-a{number}", tournament_id=NAME, number=number, algorithm="ppo")
        mesh.known.lineage.append(agent)
    return mesh


def test_a_tournament_is_read_through_an_address(race: Any) -> None:
    with podrace.connect(race.address) as mesh:
        (listed, *_) = mesh.tournaments()
        tournament = mesh.tournament("latest")
        assert tournament.tournament_id == listed.tournament_id == NAME
        assert tournament.status().best_score == 480.0
        assert [one.agent_id for one in tournament.candidates()]
        assert [one.number for one in tournament.agents()] == [0, 1, 2]
        assert tournament.champion().agent_id == f"{NAME}-a2"
        assert tournament.wait(5.0).state == tournament.wait(0.0).state == "completed"
        assert tournament.message().spec.environment.id == "CartPole-v1"
    assert mesh.closed


def test_a_tournament_without_candidates_has_no_champion(race: Any) -> None:
    race.known.tournaments[0].champion_manifest_digest = ""
    with podrace.connect(race.address) as mesh, pytest.raises(NotFound, match="has no candidate yet"):
        mesh.tournament().champion()


def test_an_unknown_tournament_is_not_found(race: Any) -> None:
    with podrace.connect(race.address) as mesh, pytest.raises(NotFound, match="unknown tournament 'pendulum'"):
        mesh.tournament("pendulum")


def test_waiting_for_a_failed_tournament_raises_its_reason(race: Any) -> None:
    race.known.end_state = "FAILED"
    race.known.tournaments[0].state = TOURNAMENT_STATE_FAILED
    race.known.tournaments[0].reason = "no GPU"
    with podrace.connect(race.address) as mesh:
        for progress in (False, True):
            with pytest.raises(podrace.errors.FailedPrecondition, match=f"{NAME} failed: no GPU"):
                mesh.tournament().wait(progress=progress)


def test_an_address_without_a_mesh_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podrace.aio, "CONNECT_SECONDS", 0.2)
    with pytest.raises(Unavailable, match="check the address"):
        podrace.connect(f"unix:{tmp_path}/none.sock")


async def test_the_same_methods_can_be_awaited(race: Any) -> None:
    async with podrace.aio.connect(race.address) as mesh:
        tournament = await mesh.tournament()
        assert (await tournament.status()).state == "completed"
        assert (await tournament.champion()).score == 480.0


def test_both_interfaces_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))}

    assert methods(podrace.aio.AsyncTournament) - methods(podrace.Tournament) == {"follow"}
    assert methods(podrace.Tournament) <= methods(podrace.aio.AsyncTournament)
    assert methods(podrace.Mesh) - methods(podrace.aio.AsyncMesh) == {"close", "run", "submit"}
