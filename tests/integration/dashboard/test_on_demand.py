"""Reports and videos are computed once, when a page asks for them, with the rights of the dashboard."""

import asyncio
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from gateway_page import NAME, Page
from google.protobuf.struct_pb2 import Struct
from scripted_mesh import ScriptedMesh

from podrace.client.champion import members_of_champion
from podrace.dashboard.on_demand import episodes
from podrace.dashboard.on_demand.episodes import EpisodeStudio
from podrace.errors import Unimplemented
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED, EnvironmentSpec

SECONDS = 20.0
MP4 = bytes(range(256)) * 10


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the child process that draws; returns its requests."""
    requests: list[dict[str, Any]] = []

    async def rendered(request: dict[str, Any], deadline_seconds: float) -> dict[str, Any]:
        if request["seed"] == 13:
            raise Unimplemented("render: envpool:Ant-v5: cannot be drawn; \x1b[31muse another")
        requests.append(request)
        Path(request["file"]).write_bytes(MP4)
        return {"steps": 500, "episode_return": 480.5, "ended": True, "pictures": 250}

    monkeypatch.setattr(episodes, "rendered", rendered)
    return requests


def split_of(request: dict[str, Any]) -> Any:
    return dict(EnvironmentSpec.FromString(b64decode(request["environment"])).options)["split"]


async def ended(page: Page, job: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        while job["state"] in ("waiting", "running"):
            await asyncio.sleep(0.02)
            job = await page.get(f"jobs/{job['job']}")
    return job


async def test_the_champion_and_its_reports_are_named(page: Page, mesh: ScriptedMesh):
    found = await page.get(f"tournaments/{NAME}/champion")
    assert found["members"][0]["agent_id"] == mesh.prepared[NAME].tournament.best_agent_id
    assert [(one["name"], bool(one["refused"])) for one in found["reports"]] == [
        ("backtest", True),
        ("validation", False),
    ]


async def test_a_report_has_the_account_and_the_market_and_is_made_once(page: Page, mesh: ScriptedMesh):
    body = {"report": "validation"}
    job = await ended(page, await page.post(f"tournaments/{NAME}/report", body))
    charts = {one["title"]: one for one in job["result"]["charts"]}
    assert [one["name"] for one in charts["Account value"]["series"]] == [
        "champion",
        "index",
        "buy and hold, equal weight",
    ]
    assert {"Drawdown", "Value of the shares / account value"} <= set(charts)
    assert (await page.post(f"tournaments/{NAME}/report", body))["state"] == "done"
    (request,) = mesh.requests
    assert isinstance(request, pb.CreateEvaluationRequest)
    assert (request.episodes, dict(request.options)) == (1, {"split": "validation"})


async def test_test_data_are_used_only_after_the_end(page: Page, mesh: ScriptedMesh):
    found = await page.post(f"tournaments/{NAME}/report", {"report": "backtest"}, 409)
    assert "has ended" in found["error"]
    assert mesh.requests == []
    mesh.prepared[NAME].set_state(TOURNAMENT_STATE_COMPLETED, "target reached")
    async with asyncio.timeout(SECONDS):
        while (await page.get(f"tournaments/{NAME}"))["state"] != "completed":
            await asyncio.sleep(0.02)
    job = await ended(page, await page.post(f"tournaments/{NAME}/report", {"report": "backtest"}))
    assert job["state"] == "done"


async def test_a_report_that_the_mesh_refuses_says_why(page: Page, mesh: ScriptedMesh):
    mesh.refuses_changes = True
    job = await ended(page, await page.post(f"tournaments/{NAME}/report", {"report": "validation"}))
    assert (job["state"], job["error"]) == (
        "failed",
        "alice: the role viewer may not call this method; it needs user",
    )


async def test_an_episode_is_drawn_once_and_its_parts_are_served(page: Page, drawn, mesh: ScriptedMesh):
    job = await ended(page, await page.post(f"tournaments/{NAME}/episode", {"seed": 3}))
    assert (job["result"]["steps"], job["result"]["episode_return"]) == (500, 480.5)
    assert (await page.post(f"tournaments/{NAME}/episode", {"seed": 3}))["state"] == "done"
    (request,) = drawn
    assert request["digests"] == [mesh.prepared[NAME].tournament.champion_manifest_digest]
    assert request["trusted"]
    assert split_of(request) == "validation"
    async with page.session.get(page.origin + job["result"]["file"], headers={"Range": "bytes=10-19"}) as response:
        assert (response.status, await response.read()) == (206, MP4[10:20])
        assert response.headers["Content-Type"] in episodes.CONTENT_TYPES.values()
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_an_episode_of_an_agent_is_that_of_its_candidate_on_the_board(page: Page, drawn, mesh: ScriptedMesh):
    await page.get(f"tournaments/{NAME}/board")
    entry = next(one for one in mesh.prepared[NAME].board() if one.agent_number == 2)
    await ended(page, await page.post(f"tournaments/{NAME}/episode", {"agent": f"{NAME}-a2"}))
    assert drawn[0]["digests"] == [entry.candidate_id]
    await page.post(f"tournaments/{NAME}/episode", {"agent": f"{NAME}-a99"}, 404)


async def test_an_episode_of_a_report_has_its_options_and_obeys_its_rule(page: Page, drawn, mesh: ScriptedMesh):
    await page.post(f"tournaments/{NAME}/episode", {"report": "backtest"}, 409)
    await page.post(f"tournaments/{NAME}/episode", {"report": "other"}, 409)
    await ended(page, await page.post(f"tournaments/{NAME}/episode", {"report": "validation"}))
    assert [split_of(request) for request in drawn] == ["validation"]


@pytest.mark.parametrize("seed", [-1, 2**31, "1", 1.5, True])
async def test_a_seed_outside_its_range_is_refused(page: Page, drawn, seed):
    await page.post(f"tournaments/{NAME}/episode", {"seed": seed}, 400)
    assert drawn == []


async def test_why_an_episode_cannot_be_drawn_is_one_escaped_line(page: Page, drawn):
    job = await ended(page, await page.post(f"tournaments/{NAME}/episode", {"seed": 13}))
    assert job["error"] == r"render: envpool:Ant-v5: cannot be drawn; \x1b[31muse another"
    await page.get(f"jobs/{job['job']}/file", 404)


async def test_a_large_file_is_not_kept(page: Page, drawn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(episodes, "MOST_BYTES", 100)
    job = await ended(page, await page.post(f"tournaments/{NAME}/episode", {"seed": 1}))
    assert "more than 100" in job["error"]
    assert not Path(drawn[0]["file"]).exists()


async def test_nothing_is_computed_for_another_page(page: Page, drawn, mesh: ScriptedMesh):
    for path, body in (("report", {"report": "validation"}), ("episode", {})):
        await page.post(f"tournaments/{NAME}/{path}", body, 403, {"X-Podrace-Change": "guessed"})
        await page.post(f"tournaments/{NAME}/{path}", body, 403, {"Origin": "http://attacker.example"})
    await page.get("jobs/episode-0", 404)
    assert (drawn, mesh.requests) == ([], [])


async def test_other_users_cannot_read_the_files_and_they_are_removed_at_the_end(drawn, mesh: ScriptedMesh):
    studio = EpisodeStudio(trusted=False)
    tournament = mesh.prepared[NAME].tournament
    episode = await studio.draw(tournament, members_of_champion(tournament), Struct(), 1)
    assert episode.file.parent.stat().st_mode & 0o077 == 0
    assert not drawn[0]["trusted"]
    studio.close()
    assert not episode.file.parent.exists()
