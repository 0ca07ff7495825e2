"""Services of today work with pods of the last release, and pods of today with services of the last release.

Simulated are the messages and methods of the other version (`version_proxy`), not its code. 0.1.0 has neither lease
tokens nor the budget of a single agent, so the services have no key of the mesh, and the strategy is one of 0.1.0,
which gives all agents the same budget.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from homes import Home, wait_for
from proxied_mesh import proxied_mesh
from released import HOMES, ReleasedHome, name
from version_proxy import PreviousCallers, PreviousServices

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CALLED = {
    "orchestrator": {"AcquireAssignment", "RenewAssignment", "CompleteAssignment"},
    "leaderboard": {"GenerateAgent", "SubmitCandidate", "ReviewAgents"},
}


@pytest.fixture
def folder(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, because Linux limits those of sockets."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        monkeypatch.setenv("PODRACE_TOKEN_FILE", f"{name}/token/token")
        yield Path(name)


def check_events(home: Home, tournament_id: str, address: str, earlier: int = 0) -> None:
    """No pod was lost and no agent failed."""
    events = home.json("events", tournament_id, "--orchestrator", address, with_home=False)[earlier:]
    bad = {"agent_failed", "pod_died", "pod_killed", "submission_refused", "role_stuck", "storage_fault"}
    assert [event for event in events if event["kind"] in bad] == []


@pytest.mark.parametrize("proxy", [PreviousCallers, PreviousServices])
def test_a_tournament_completes_with_pods_or_services_of_the_last_release(
    home: Home, folder: Path, proxy: type[PreviousCallers]
) -> None:
    spec = home.spec("environment_steps = 80000", pool="minimum_pods = 2\nmaximum_pods = 2")
    running = proxied_mesh(folder / "mesh", lambda target, _: proxy(target), lease_seconds=1.0, sockets=True)
    with running as (address, proxies):
        settings = ("--set", "assignment.environment_steps=20000", "--set", "evolution.strategy=tournament")
        arguments = ("train", str(spec), *settings, "--orchestrator", address)
        trained: Any = home.json(*arguments, with_home=False, seconds=200.0)
        assert trained["state"] == "COMPLETED"
        assert trained["failed_agents"] == 0
        assert trained["best_score"] is not None
        check_events(home, trained["tournament_id"], address)
        for service, methods in CALLED.items():
            assert methods <= proxies[service].counts.keys(), proxies[service].counts
            assert proxies[service].extended
        assert "PlanEvaluation" in proxies["leaderboard"].unknown


@pytest.mark.parametrize("archive", HOMES, ids=name)
def test_services_of_today_on_a_released_home_continue_its_tournament_with_pods_of_the_last_release(
    home: Home, folder: Path, archive: Path
) -> None:
    released = ReleasedHome(archive, folder)
    tournament_id = released.tournament("stopped")["tournament_id"]
    running = proxied_mesh(folder / "mesh", lambda target, _: PreviousCallers(target), released.path, sockets=True)
    with running as (address, _):
        where = ("--orchestrator", address)
        recorded = len(home.json("events", tournament_id, *where, with_home=False, seconds=120.0))
        home.json("resume", tournament_id, *where, with_home=False)

        def completed() -> bool:
            found = home.json("show", tournament_id, *where, with_home=False)
            return bool(found["state"] == "COMPLETED")

        wait_for(completed, 200.0, what="the end of the tournament")
        check_events(home, tournament_id, address, recorded)
