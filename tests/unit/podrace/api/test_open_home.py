import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import podrace
from podrace.api import aio
from podrace.errors import FailedPrecondition
from podrace.mesh.home import Folders


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to meshes that no processes run."""
    happened: list[str] = []

    @contextlib.asynccontextmanager
    async def open_home(home: Path, *, store: str = "") -> AsyncIterator[Any]:
        folders = Folders.of(home)
        folders.make_home()
        folders.leaderboard_database.touch()
        happened.append("started")
        try:
            yield SimpleNamespace(address="unix:/mesh")
        finally:
            happened.append("stopped")

    monkeypatch.setattr(aio, "open_home", open_home)
    return happened


async def answer() -> int:
    return 7


def test_a_mesh_stops_when_its_last_user_closes_it(log: list[str], tmp_path: Path) -> None:
    outer = podrace.open_home(tmp_path / "home")
    with podrace.open_home(tmp_path / "home") as inner:
        assert inner.run(answer()) == 7
    inner.close()
    assert (inner.closed, outer.closed, log) == (True, False, ["started"])
    with pytest.raises(FailedPrecondition, match="the mesh is closed"):
        inner.run(answer())
    assert outer.run(answer()) == 7
    outer.close()
    assert (outer.closed, log) == (True, ["started", "stopped"])
    with podrace.open_home(tmp_path / "home") as again:
        assert again.run(answer()) == 7
    assert log == ["started", "stopped"] * 2


def test_another_store_for_a_home_that_is_open_is_refused(log: list[str], tmp_path: Path) -> None:
    with podrace.open_home(tmp_path / "home"):
        with pytest.raises(FailedPrecondition, match="not in folder:///other"):
            podrace.open_home(tmp_path / "home", store="folder:///other")
        podrace.open_home(tmp_path / "home", store=f"folder://{tmp_path}/home/store").close()
    assert log == ["started", "stopped"]


def test_a_mesh_stops_if_no_tournament_can_be_started_on_it(log: list[str], tmp_path: Path) -> None:
    wanted = {"environment": {"id": "cartpole"}, "algorithms": {"ppo": {}}, "objective": {"target_return": 475}}
    with pytest.raises(AttributeError, match="train"):
        podrace.train(wanted, home=tmp_path / "home")
    assert log == ["started", "stopped"]
