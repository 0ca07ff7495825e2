"""A synchronous tournament has the same board if requests and replies are lost, repeated, or overtake each other.

These are the calls of pods and of the orchestrator to the services. Repeated and late calls elsewhere are tested in
`test_repeated_calls.py` (in `tests/integration/agentpod/`, `leaderboard/` and `serving/`) and, for plugins, in
`tests/integration/test_connections_to_plugins.py`. SimulatorService has one unary method, which only reads, and a
stream in both directions, in which gRPC neither repeats nor reorders messages.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from homes import Home
from lossy_mesh import Losses, LossyProxy
from proxied_mesh import proxied_mesh

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
NO_LOSSES = Losses()
LOSSES = {
    "10 % of the requests": Losses(request=0.10),
    "25 % of the replies": Losses(reply=0.25),
    "requests, replies, repeated and late calls": Losses(request=0.10, reply=0.15, twice=0.25, late=0.25),
}


def board(home: Home, folder: Path, losses: Losses, seed: int) -> tuple[list[Any], dict[str, dict[str, int]]]:
    """Trains, and returns what must not depend on the network, and what happened to the calls of each service."""
    spec = home.spec("environment_steps = 24000", pool="minimum_pods = 2\nmaximum_pods = 2")
    with proxied_mesh(folder, lambda target, number: LossyProxy(target, losses, seed + number)) as (address, proxies):
        arguments = ("--set", "synchronous=true", "--orchestrator", address)
        trained = home.json("train", str(spec), *arguments, with_home=False, seconds=250.0)
        assert trained["state"] == "COMPLETED"
        assert trained["failed_agents"] == 0
        name = trained["tournament_id"]
        found = home.json("standings", name, "--orchestrator", address, with_home=False)
    rows = [
        (row["agent_id"].removeprefix(name), row["score"], row["environment_steps"], str(row["hyperparameters"]))
        for row in found
    ]
    return rows, {name: dict(proxy.counts) for name, proxy in proxies.items()}


def test_the_final_board_is_identical(
    home: Home, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        folder = Path(name)
        home.path.parent.mkdir(exist_ok=True)
        monkeypatch.setenv("PODRACE_TOKEN_FILE", f"{folder}/token/token")
        wanted, _ = board(home, folder / "none", NO_LOSSES, 0)
        assert len(wanted) >= 4
        for number, (what, losses) in enumerate(LOSSES.items(), start=1):
            found, counts = board(home, folder / str(number), losses, number)
            print(what, counts)
            record_property(what, counts)
            assert found == wanted, what
            for service, happened in counts.items():
                for kind in ("request", "reply", "twice", "late"):
                    assert bool(happened.get(kind)) == bool(getattr(losses, kind)), (service, kind)
