"""A mesh moves from SQLite to PostgreSQL: its tournaments, boards and checkpoints are the same afterwards."""

import tempfile
from pathlib import Path

import pytest
from homes import Home, wait_for
from postgresql_server import MISSING, programs, running_server
from replicas import replicated_mesh

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.cold, pytest.mark.timeout(240)]


def test_tournaments_of_a_home_continue_on_two_replicas_with_postgresql(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    if programs() is None:
        pytest.skip(MISSING)
    spec = home.spec("environment_steps = 12000", pool="maximum_pods = 1")
    tournament = home.json("train", str(spec))["tournament_id"]
    standings, shown = home.json("standings", tournament), home.json("show", tournament)
    with running_server() as server, tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        url, folder = server.new_url(), Path(name)
        for service in ("orchestrator", "leaderboard"):
            database = str(home.path / f"{service}.sqlite")
            moved = home.published("migrate", database, url, with_home=False)
            assert (moved["service"], moved["moved_before"]) == (service, False)
            assert home.json("migrate", database, url, with_home=False)["moved_before"]
        code, _, err = home.run("ls")
        assert code != 0
        assert "was moved to a server of PostgreSQL" in err + (home.folders.logs / "orchestrator.log").read_text()
        monkeypatch.setenv("PODRACE_TOKEN_FILE", f"{folder}/access/token")
        (folder / "store").symlink_to(home.path / "store")
        with replicated_mesh(folder, server, url) as mesh:
            for service in ("orchestrator", "leaderboard"):
                mesh.leader(service)
            there = ("--orchestrator", mesh.addresses["orchestrator"])
            wait_for((folder / "access" / "token").exists)
            assert home.json("standings", tournament, *there, with_home=False) == standings
            again = home.json("show", tournament, *there, with_home=False)
            assert {key: again[key] for key in ("state", "champion_hyperparameters", "failed_agents")} == {
                key: shown[key] for key in ("state", "champion_hyperparameters", "failed_agents")
            }
            assert (again["state"], again["total_environment_steps"]) == ("COMPLETED", shown["total_environment_steps"])
