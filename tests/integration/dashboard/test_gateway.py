"""The gateway answers only its own pages, shows what the mesh knows, and forwards what the mesh refuses."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from gateway_page import NAME, Page
from scripted_mesh import ScriptedMesh
from yarl import URL

from podrace.dashboard import live
from podrace.dashboard.gateway import ASSETS
from podrace.dashboard.live import LIVE_PATH
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED

SECONDS = 20.0


async def until(page: Page, path: str, condition: Any, **query: Any) -> Any:
    """Reads until the answer meets a condition."""
    async with asyncio.timeout(SECONDS):
        while not condition(found := await page.get(path, **query)):
            await asyncio.sleep(0.02)
    return found


async def events_of(page: Page, path: str) -> Any:
    """Yields the events of a stream."""
    async with page.session.get(f"{page.origin}/api/{path}") as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        async for line in response.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


# --- who is answered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/api/tournaments", f"/api/tournaments/{NAME}/stream"])
async def test_without_the_token_nothing_is_answered(page: Page, path: str):
    async with aiohttp.ClientSession() as other, other.get(page.origin + path) as response:
        assert response.status == 401


async def test_a_wrong_token_gets_no_cookie(page: Page):
    async with aiohttp.ClientSession() as other, other.get(f"{page.origin}/?token=wrong") as response:
        assert response.status == 401
        assert not response.cookies


async def sent(page: Page, head: bytes) -> bytes:
    """Sends bytes to the port of the dashboard, and returns the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(page.origin.rpartition(":")[2]))
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), SECONDS)
    writer.close()
    return answer


@pytest.mark.parametrize("value", [b"\xff\xfe\x80", b"\xed\xa0\x80", b"\xc3\xbc"])
async def test_a_cookie_that_is_no_text_is_refused_like_any_other(page: Page, value: bytes):
    # Before, it could not be encoded: 500, and a traceback in the log for everyone who can reach the port.
    host = page.origin.removeprefix("http://")
    cookie = b"podrace_dashboard_" + host.rpartition(":")[2].encode()
    head = b"GET / HTTP/1.1\r\nHost: " + host.encode() + b"\r\nConnection: close\r\nCookie: " + cookie + b"=" + value
    assert (await sent(page, head + b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_request_is_refused_without_a_traceback(
    page: Page, head: bytes, caplog: pytest.LogCaptureFixture
):
    assert b" 400 " in (await sent(page, head)).partition(b"\r\n")[0]
    assert not [record for record in caplog.records if record.exc_info]


async def test_the_token_leaves_the_url_and_scripts_cannot_read_the_cookie(page: Page):
    async with aiohttp.ClientSession() as other, other.get(page.url, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/")
        (cookie,) = response.cookies.values()
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert page.url.partition("token=")[2] not in cookie.value


async def test_another_host_name_is_refused(page: Page):
    async with page.session.get(f"{page.origin}/", headers={"Host": "attacker.example"}) as response:
        assert response.status == 421


@pytest.mark.parametrize("path", ["", "api/tournaments", "api/unknown", "assets/style.css"])
async def test_every_answer_forbids_foreign_content(page: Page, path: str):
    async with page.session.get(f"{page.origin}/{path}") as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("name", ["../gateway.py", "..%2fgateway.py", "vendor/../../gateway.py", "x.py", "pages"])
async def test_only_assets_are_served(page: Page, name: str):
    async with page.session.get(f"{page.origin}/assets/{name}") as response:
        assert response.status == 404


async def test_no_other_file_of_the_machine_is_served(page: Page, tmp_path: Path):
    file = tmp_path / "secret.js"
    file.write_text("secret")
    relative = os.path.relpath(file, ASSETS)
    names = [str(file), f"/{file}", f".//{file}", str(ASSETS / "app.js"), relative, f"vendor/../{relative}"]
    names += [quote(name, safe="") for name in names]
    names += [name.replace("..", "%2e%2e") for name in (relative, quote(relative, safe=""))]
    names += [name.replace("/", separator) for name in (str(file), relative) for separator in ("\\", "%5c")]
    answered = {}
    for name in names:
        # `encoded`: the client sends the path as it is, with its dots.
        async with page.session.get(URL(f"{page.origin}/assets/{name}", encoded=True)) as response:
            answered[name] = response.status
    assert answered == dict.fromkeys(names, 404)


async def test_every_asset_that_a_page_imports_is_served(page: Page):
    served = [path.relative_to(ASSETS) for path in ASSETS.rglob("*") if path.suffix in (".js", ".css", ".html")]
    assert Path("vendor/uplot/uPlot.esm.js") in served
    for name in served:
        async with page.session.get(f"{page.origin}/assets/{name}") as response:
            assert response.status == 200, name


def test_all_modules_are_preloaded_so_that_they_are_fetched_at_once():
    text = (ASSETS / "index.html").read_text()
    listed = set(re.findall(r'<link rel="modulepreload" href="/assets/([^"]+)">', text))
    assert listed == {str(path.relative_to(ASSETS)) for path in ASSETS.rglob("*.js")} - {"app.js", "early.js"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "http://attacker.example"},
        {"X-Podrace-Change": None},
        {"X-Podrace-Change": "guessed"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
    ],
)
async def test_a_change_that_is_not_from_a_page_of_the_dashboard_is_refused(page: Page, mesh: ScriptedMesh, headers):
    await page.post(f"tournaments/{NAME}/stop", {}, 403, headers)
    assert mesh.requests == []


async def test_a_large_body_is_refused(page: Page):
    await page.post("check", {"specification": "x" * 600_000}, 413)


# --- what is shown -----------------------------------------------------------------------------------------------


async def test_tournaments_are_listed_and_searched(page: Page, mesh: ScriptedMesh):
    mesh.add("other-abc123")
    assert [one["tournament_id"] for one in (await page.get("tournaments"))["entries"]] == ["other-abc123", NAME]
    found = await page.get("tournaments", words="OTHER")
    assert [one["tournament_id"] for one in found["entries"]] == ["other-abc123"]
    assert (await page.get("tournaments", offset=1, limit=1))["total"] == 2


async def test_an_unknown_tournament_is_not_found(page: Page):
    found = await page.get("tournaments/nothing-abc123", 404)
    assert "not known" in found["error"]


async def test_the_board_is_read_in_parts(page: Page):
    found = await page.get(f"tournaments/{NAME}/board", offset=1, limit=2)
    assert [one["rank"] for one in found["entries"]] == [2, 3]
    assert found["total"] == 6


async def test_curves_have_all_submissions(page: Page):
    found = await until(page, f"tournaments/{NAME}/curves", lambda one: one["loaded"], of="agents", width=100)
    assert found["points"] == 60
    assert len(found["series"]) == 6
    assert sum(value is not None for one in found["series"] for value in one["y"]) == 60


async def test_a_new_submission_reaches_an_open_page(page: Page, mesh: ScriptedMesh):
    entry = mesh.prepared[NAME]
    seen = set()
    async with asyncio.timeout(SECONDS):
        async for event in events_of(page, f"tournaments/{NAME}/stream"):
            if event["loaded"] and not seen:
                seen.add(event["points"])
                entry.submit(0, 499.0)
            if event["points"] == 61 and event["tournament"]["best_score"] == 499.0:
                break
    found = await until(page, f"tournaments/{NAME}/board", lambda one: one["entries"][0]["score"] == 499.0)
    assert found["entries"][0]["rank"] == 1


async def test_a_new_agent_is_known_after_a_while(page: Page, mesh: ScriptedMesh):
    await page.get(f"tournaments/{NAME}/agents")
    mesh.prepared[NAME].generate(0, 0.5)
    found = await until(page, f"tournaments/{NAME}/agents", lambda one: one["total"] == 7)
    assert found["entries"][-1]["hyperparameters"]["learning_rate"] == 0.5


async def test_the_lineage_starts_at_the_champion(page: Page, mesh: ScriptedMesh):
    found = await page.get(f"tournaments/{NAME}/lineage")
    assert found["agent_id"] == mesh.prepared[NAME].tournament.best_agent_id
    assert found["path"][-1]["agent_id"] == found["agent_id"]
    await page.get(f"tournaments/{NAME}/lineage", 404, agent=f"{NAME}-a99")
    await page.get(f"tournaments/{NAME}/lineage", 400, agent="<script>")


async def test_hyperparameters_are_shown_by_algorithm(page: Page):
    found = await page.get(f"tournaments/{NAME}/hyperparameters", algorithm="ppo")
    assert {"name": "learning_rate", "scale": "log"}.items() <= found["axes"][1].items()
    assert found["schedules"]
    await page.get(f"tournaments/{NAME}/hyperparameters", 404, algorithm="unknown")


async def test_pods_have_their_reasons(page: Page):
    found = await until(page, f"tournaments/{NAME}/pods", lambda one: one["total"] == 4)
    assert found["entries"][0]["plane"] == "shared"
    assert {one["kind"] for one in found["reasons"]} == {"pod_started"}


async def test_events_are_filtered(page: Page):
    found = await until(page, f"tournaments/{NAME}/events", lambda one: one["known"] == 10, kind="pod_started")
    assert len(found["entries"]) == 4
    assert len((await page.get(f"tournaments/{NAME}/events", agent="a3"))["entries"]) == 1
    await page.get(f"tournaments/{NAME}/events", 400, limit=100_000)


async def test_a_checkpoint_has_its_size(page: Page, mesh: ScriptedMesh):
    digest = mesh.prepared[NAME].tournament.champion_manifest_digest
    found = await page.get(f"tournaments/{NAME}/checkpoints/{digest}")
    assert (found["size_bytes"], found["total"]) == (4 << 20, 2)


async def test_the_log_of_a_pod_is_followed(page: Page, folder: Path):
    log = folder / "logs" / f"{NAME}-p0.log"
    log.parent.mkdir()
    log.write_text("first\n\x1b[31msecond\n")
    assert (await page.get(f"tournaments/{NAME}/logs"))["logs"] == [f"{NAME}-p0"]
    seen = []
    async with asyncio.timeout(SECONDS):
        async for event in events_of(page, f"tournaments/{NAME}/logs/{NAME}-p0/stream?lines=1"):
            seen += event["lines"]
            if event["begins"]:
                with log.open("a") as file:
                    file.write("third\n")
            if "third" in seen:
                break
    assert seen == ["\\x1b[31msecond", "third"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"tournaments/{NAME}/logs/{NAME}-p9/stream", 404),
        (f"tournaments/{NAME}/logs/other-abc123-p0/stream", 404),
        (f"tournaments/{NAME}/logs/..%2ftoken/stream", 400),
        (f"tournaments/{NAME}/logs/orchestrator/stream?lines=1000000", 400),
        ("tournaments/other-abc123/logs/orchestrator/stream", 404),
        ("tournaments/other-abc123/logs", 404),
    ],
)
async def test_what_is_no_log_of_a_known_tournament_is_refused(page: Page, folder: Path, path: str, status: int):
    (folder / "logs").mkdir()
    (folder / "logs" / "other-abc123-p0.log").write_text("secret\n")
    (folder / "logs" / "orchestrator.log").write_text("secret\n")
    assert "secret" not in str(await page.get(path, status))


# --- what is changed ---------------------------------------------------------------------------------------------


async def test_a_tournament_is_stopped_resumed_scaled_and_deleted(page: Page, mesh: ScriptedMesh):
    path, entry = f"tournaments/{NAME}", mesh.prepared[NAME].tournament
    assert (await page.post(f"{path}/scale", {"maximum_pods": 3}))["pool"] == {"maximum_pods": 3}
    assert (await page.post(f"{path}/stop", {"reason": "enough"}))["state"] == "cancelled"
    assert entry.reason == "enough"
    assert (await page.post(f"{path}/resume", {}))["state"] == "running"
    assert "has not ended" in (await page.post(f"{path}/delete", {"confirm": NAME}, 409))["error"]
    await page.post(f"{path}/stop", {})
    await page.post(f"{path}/delete", {"confirm": "another"}, 400)
    assert await page.post(f"{path}/delete", {"confirm": NAME}) == {"deleted": NAME}
    await page.get(path, 404)


async def test_a_tournament_is_paused_and_resumed(page: Page):
    path = f"tournaments/{NAME}"
    assert (await page.post(f"{path}/pause", {"reason": "lunch"}))["pause_reason"] == "paused by alice: lunch"
    assert (await page.post(f"{path}/resume", {}))["pause_reason"] == ""


async def test_a_refused_change_says_why(page: Page, mesh: ScriptedMesh):
    mesh.refuses_changes = True
    found = await page.post(f"tournaments/{NAME}/stop", {}, 403)
    assert found["error"] == "alice: the role viewer may not call this method; it needs user"
    assert found["code"] == "PERMISSION_DENIED"


async def test_a_specification_is_checked_without_starting_it(page: Page, mesh: ScriptedMesh):
    text = 'name = "x"\n[environment]\nid = "CartPole-v1"\n'
    found = await page.post("check", {"specification": text})
    assert found["unchecked"] == ["resources: no machine answers"]
    assert "CartPole-v1" in found["specification"]
    found = await page.post("check", {"specification": text.replace("CartPole-v1", "unknown")}, 400)
    assert "no such environment" in found["error"]
    assert mesh.requests == []


async def test_a_repeated_start_has_the_same_request_id(page: Page, mesh: ScriptedMesh):
    body = {"specification": 'name = "x"\n[environment]\nid = "CartPole-v1"\n', "request_id": "one"}
    await page.post("tournaments", body)
    await page.post("tournaments", body)
    assert {one.request_id for one in mesh.requests if isinstance(one, pb.CreateTournamentRequest)} == {"one"}


# --- what happens when a service stops ---------------------------------------------------------------------------


async def test_a_mesh_that_stops_is_reported_and_found_again(page: Page, mesh: ScriptedMesh):
    lost = recovered = False
    async with asyncio.timeout(SECONDS):
        async for event in events_of(page, f"tournaments/{NAME}/stream"):
            if event["loaded"] and not event["faults"] and not lost:
                await mesh.stop()
                lost = True
            elif lost and event["faults"] and not recovered:
                await mesh.start()
                mesh.prepared[NAME].submit(1, 499.5)
                recovered = True
            elif recovered and not event["faults"] and event["points"] == 61:
                break
    assert lost
    assert recovered


async def test_an_ended_tournament_that_is_resumed_is_followed_again(page: Page, mesh: ScriptedMesh):
    entry = mesh.prepared[NAME]
    entry.set_state(TOURNAMENT_STATE_COMPLETED, "target reached")
    await until(page, f"tournaments/{NAME}", lambda one: one["state"] == "completed")
    await page.post(f"tournaments/{NAME}/resume", {})
    await until(page, f"tournaments/{NAME}", lambda one: one["state"] == "running")


async def test_the_last_pods_of_an_ended_tournament_disappear(page: Page, mesh: ScriptedMesh):
    entry = mesh.prepared[NAME]
    entry.set_state(TOURNAMENT_STATE_COMPLETED, "target reached")
    await until(page, f"tournaments/{NAME}", lambda one: one["state"] == "completed")
    entry.pods.clear()
    await until(page, f"tournaments/{NAME}/pods", lambda one: one["total"] == 0)


async def test_the_list_stream_reports_a_mesh_that_does_not_answer(page: Page, mesh: ScriptedMesh):
    async with asyncio.timeout(SECONDS):
        async for event in events_of(page, "stream"):
            if event["faults"]:
                break
            assert event["states"] == {NAME: "running"}
            await mesh.stop()


async def test_the_check_of_a_container_is_answered_for_every_host_and_shows_nothing(page: Page, folder: Path):
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{page.origin}{LIVE_PATH}", headers={"Host": "10.0.0.7:7780"}) as response,
    ):
        assert (response.status, await response.read()) == (204, b"")
    assert await asyncio.to_thread(live.main, [page.origin]) == 0
    assert await asyncio.to_thread(live.main, ["http://127.0.0.1:1"]) == 1
