"""Each person signs in with a token of the mesh, and all calls for that person have the rights of the token."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_page import NAME, Page
from scripted_mesh import ScriptedMesh, fill

from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import claims_of
from podrace.dashboard import feed
from podrace.dashboard.entrance import attempts, sign_in
from podrace.dashboard.entrance.reader import Reader
from podrace.dashboard.gateway import serving
from podrace.dashboard.settings import DashboardSettings

SECONDS = 20.0
SPECIFICATION = 'name = "x"\n[environment]\nid = "CartPole-v1"\n'
SignIn = Callable[..., Any]


@pytest.fixture
def key() -> MeshKey:
    return MeshKey(make_pem())


@pytest.fixture
async def mesh(folder: Path, key: MeshKey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedMesh]:
    """A mesh with a tournament of alice, whose callers need tokens."""
    for name in ("RETRY_SECONDS", "BOARD_SECONDS", "ENDED_SECONDS"):
        monkeypatch.setattr(feed, name, 0.05)
    async with ScriptedMesh(folder, key) as scripted:
        fill(scripted.add(NAME), agents=6, points=60)
        yield scripted


@pytest.fixture
async def url(mesh: ScriptedMesh) -> AsyncIterator[str]:
    async with serving(DashboardSettings("127.0.0.1:0", sign_in=True), mesh.address) as found:
        yield found.rstrip("/")


def token(key: MeshKey, name: str = "alice", role: str = "user", lifetime: float = 3600.0, **claims: Any) -> str:
    expire_time = claims.pop("expire_time", time.time() + lifetime)
    return key.sign(claims_of(name, {ROLES_BY_NAME[role]}, expire_time=expire_time, **claims))


class Browser(Page):
    """A browser that opens the dashboard without knowing anything."""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["Browser"]:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            yield cls(session, url, url)

    async def sign_in(self, token: str, status: int = 200, **headers: str) -> Any:
        sent = {"Origin": self.origin, **headers}
        async with self.session.post(f"{self.origin}/api/sign-in", json={"token": token}, headers=sent) as response:
            assert response.status == status, await response.text()
            return await response.json()

    def cookies(self) -> list[Any]:
        return list(self.session.cookie_jar)


@pytest.fixture
async def browser(url: str) -> AsyncIterator[Browser]:
    async with Browser.open(url) as found:
        yield found


# --- who gets in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["tournaments", f"tournaments/{NAME}", f"tournaments/{NAME}/stream", "stream", "jobs/x"]
)
async def test_before_the_sign_in_no_data_is_answered(browser: Browser, path: str):
    found = await browser.get(path, 401)
    assert found == {"error": "Sign in with a token of the mesh.", "code": "SIGN_IN", "details": []}


async def test_before_the_sign_in_the_page_itself_is_served_and_nothing_changes(browser: Browser, mesh: ScriptedMesh):
    for path in ("/", "/assets/app.js"):
        async with browser.session.get(browser.origin + path) as response:
            assert response.status == 200
    assert await browser.get("session") == {"sign_in": True, "caller": None, "change": ""}
    headers = {"Origin": browser.origin}
    for path in (f"tournaments/{NAME}/stop", "tournaments", "sign-out"):
        async with browser.session.post(f"{browser.origin}/api/{path}", json={}, headers=headers) as response:
            assert response.status == 401
    assert mesh.requests == []


async def test_a_person_with_a_token_is_known_by_name_and_roles(browser: Browser, key: MeshKey):
    expire_time = float(round(time.time()) + 900)
    await browser.sign_in(token(key, "bob", "viewer", namespace="vision", expire_time=expire_time))
    session = await browser.get("session")
    assert session["caller"] == {
        "name": "bob",
        "namespace": "vision",
        "roles": ["viewer"],
        "tournament_id": "",
        "expire_time": expire_time,
    }


async def test_the_cookie_is_no_token_and_scripts_and_other_sites_cannot_use_it(browser: Browser, key: MeshKey):
    given = token(key)
    await browser.sign_in(f"  {given}\n")
    (cookie,) = browser.cookies()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert len(cookie.value) >= 43
    assert cookie.value not in given
    assert given not in json.dumps(await browser.get("session"))


async def test_a_token_in_the_url_begins_no_session(browser: Browser, key: MeshKey):
    async with browser.session.get(f"{browser.origin}/", params={"token": token(key)}) as response:
        assert response.status == 200
    assert (await browser.get("session"))["caller"] is None
    assert browser.cookies() == []


@pytest.mark.parametrize(
    ("given", "status", "why"),
    [
        ("", 400, "expected a token"),
        ("two words", 400, "expected a token"),
        ("ünknown", 400, "expected a token"),
        ("x" * 9000, 400, "at most 8192"),
        ("guessed", 403, "a token that is not known here"),
    ],
)
async def test_what_is_no_token_of_the_mesh_is_refused(browser: Browser, given: str, status: int, why: str):
    assert why in (await browser.sign_in(given, status))["error"]
    assert browser.cookies() == []


async def test_a_token_that_has_expired_or_is_of_another_mesh_or_of_a_pod_is_refused(browser: Browser, key: MeshKey):
    assert "has expired" in (await browser.sign_in(token(key, lifetime=-60.0), 403))["error"]
    await browser.sign_in(token(MeshKey(make_pem())), 403)
    assert "needs viewer" in (await browser.sign_in(token(key, "pod/run-p0", "pod-leader"), 403))["error"]
    assert browser.cookies() == []


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://attacker.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Content-Type": "text/plain"}],
)
async def test_another_site_cannot_sign_a_browser_in(browser: Browser, key: MeshKey, headers: dict[str, str]):
    await browser.sign_in(token(key), 403, **headers)
    assert browser.cookies() == []


async def test_guessing_is_limited_and_a_valid_token_is_not_counted(
    browser: Browser, key: MeshKey, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(3):
        await browser.sign_in(token(key))
    for _ in range(int(attempts.EACH.burst)):
        await browser.sign_in("guessed", 403)
    assert "too many attempts" in (await browser.sign_in(token(key), 429))["error"]


async def test_a_token_is_neither_logged_nor_in_an_error(
    browser: Browser, key: MeshKey, log_lines: Any, caplog: pytest.LogCaptureFixture
):
    valid, wrong = token(key), token(MeshKey(make_pem()), "eve")
    await browser.sign_in(valid)
    answer = await browser.sign_in(wrong, 403)
    text = f"{log_lines} {caplog.text} {answer}"
    assert "signed in" in text
    assert "sign-in refused" in text
    for given in (valid, wrong):
        assert given not in text
        assert given.rpartition(".")[2] not in text


# --- whose rights ------------------------------------------------------------------------------------------------


async def test_what_a_person_starts_and_stops_belongs_to_the_person_and_is_audited_by_name(
    browser: Browser, mesh: ScriptedMesh, key: MeshKey
):
    await browser.sign_in(token(key, "carol"))
    created = await browser.post("tournaments", {"specification": SPECIFICATION, "request_id": "one"})
    assert created["owner"] == "carol"
    await browser.post(f"tournaments/{created['tournament_id']}/stop", {})
    changes = [one for one in mesh.audited if one[1] != "GetTournament"]
    assert changes == [("carol", "CreateTournament", True), ("carol", "CancelTournament", True)]


async def test_one_person_does_not_take_all_places_of_reports(
    browser: Browser, url: str, mesh: ScriptedMesh, key: MeshKey
):
    mesh.evaluations_end.clear()
    names = [f"run-{letter * 6}" for letter in "abcd"]
    for name in names:
        fill(mesh.add(name), agents=2, points=2)
    body = {"report": "validation"}
    await browser.sign_in(token(key))
    for name in names[:3]:
        await browser.post(f"tournaments/{name}/report", body)
    refused = await browser.post(f"tournaments/{names[3]}/report", body, 429)
    assert "3 of your jobs" in refused["error"]
    async with Browser.open(url) as other:
        # Another session of the same person.
        await other.sign_in(token(key))
        await other.post(f"tournaments/{names[3]}/report", body, 429)
        await other.sign_in(token(key, "olga", "operator"))
        await other.post(f"tournaments/{names[3]}/report", body)
    mesh.evaluations_end.set()


async def test_a_viewer_changes_nothing(browser: Browser, mesh: ScriptedMesh, key: MeshKey):
    await browser.sign_in(token(key, "alice", "viewer"))
    found = await browser.post(f"tournaments/{NAME}/stop", {}, 403)
    assert "alice has the role viewer" in found["error"]
    assert found["code"] == "PERMISSION_DENIED"
    assert mesh.requests == []


async def test_persons_see_only_what_the_mesh_lets_them_see_although_they_share_a_gateway(
    url: str, mesh: ScriptedMesh, key: MeshKey
):
    async with Browser.open(url) as alice, Browser.open(url) as eve, Browser.open(url) as operator:
        await alice.sign_in(token(key, "alice"))
        await eve.sign_in(token(key, "eve"))
        await operator.sign_in(token(key, "root", "operator"))
        for browser in (alice, operator):
            assert (await browser.get("tournaments"))["total"] == 1
            assert (await browser.get(f"tournaments/{NAME}/board"))["total"] == 6
        assert (await eve.get("tournaments"))["total"] == 0
        job = await alice.post(f"tournaments/{NAME}/report", {"report": "validation"})
        while job["state"] in ("waiting", "running"):
            job = await alice.get(f"jobs/{job['job']}")
        assert job["state"] == "done", job
        for path in ("", "/board", "/curves", "/agents", "/events", "/pods", "/champion", "/logs", "/stream"):
            found = await eve.get(f"tournaments/{NAME}{path}", 404)
            assert "unknown tournament" in found["error"]
        await eve.get(f"jobs/{job['job']}", 404)
        await eve.post(f"tournaments/{NAME}/report", {"report": "validation"}, 404)
        for change in ("stop", "pause", "resume"):
            await eve.post(f"tournaments/{NAME}/{change}", {}, 404)
        assert (await operator.get(f"jobs/{job['job']}"))["state"] == "done"


async def test_the_value_that_changes_need_is_of_one_session(url: str, mesh: ScriptedMesh, key: MeshKey):
    async with Browser.open(url) as first, Browser.open(url) as second:
        await first.sign_in(token(key))
        await second.sign_in(token(key))
        change = (await second.get("session"))["change"]
        await first.post(f"tournaments/{NAME}/stop", {}, 403, {"X-Podrace-Change": change})
        await first.post(f"tournaments/{NAME}/stop", {}, 403, {"X-Podrace-Change": None})
        assert mesh.requests == []
        await first.post(f"tournaments/{NAME}/stop", {})


async def test_episodes_are_not_drawn_on_a_machine_that_several_persons_use(browser: Browser, key: MeshKey):
    await browser.sign_in(token(key))
    assert "podrace render" in (await browser.post(f"tournaments/{NAME}/episode", {}, 501))["error"]


# --- the end of a session ----------------------------------------------------------------------------------------


async def test_after_the_sign_out_the_cookie_is_worth_nothing(browser: Browser, key: MeshKey):
    await browser.sign_in(token(key))
    (cookie,) = browser.cookies()
    headers = {"Cookie": f"{cookie.key}={cookie.value}"}
    await browser.get("tournaments")
    await browser.post("sign-out", {})
    assert browser.cookies() == []
    async with (
        aiohttp.ClientSession() as other,
        other.get(f"{browser.origin}/api/tournaments", headers=headers) as response,
    ):
        assert response.status == 401


async def test_a_sign_out_needs_the_value_of_the_session(browser: Browser, key: MeshKey):
    await browser.sign_in(token(key))
    await browser.post("sign-out", {}, 403, {"X-Podrace-Change": "guessed"})
    assert (await browser.get("session"))["caller"]["name"] == "alice"


async def test_a_second_sign_in_ends_the_session_that_the_browser_had(browser: Browser, key: MeshKey):
    await browser.sign_in(token(key, "alice"))
    (before,) = browser.cookies()
    await browser.sign_in(token(key, "bob"))
    (after,) = browser.cookies()
    assert before.value != after.value
    headers = {"Cookie": f"{before.key}={before.value}"}
    async with (
        aiohttp.ClientSession() as other,
        other.get(f"{browser.origin}/api/tournaments", headers=headers) as response,
    ):
        assert response.status == 401


async def stream_ended(browser: Browser, path: str, act: Callable[[], Any]) -> None:
    """Opens a stream, acts after its first event, and waits until it has ended."""
    async with asyncio.timeout(SECONDS), browser.session.get(f"{browser.origin}/api/{path}") as response:
        assert response.status == 200
        acted = False
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for line in response.content:
                if line.startswith(b"data: ") and not acted:
                    acted = True
                    await act()
        assert acted


@pytest.mark.parametrize("path", ["stream", f"tournaments/{NAME}/stream"])
async def test_streams_end_with_the_session(browser: Browser, key: MeshKey, path: str):
    await browser.sign_in(token(key))
    await stream_ended(browser, path, lambda: browser.post("sign-out", {}))
    await browser.get("tournaments", 401)


async def test_a_stream_ends_when_the_tournament_may_no_longer_be_read(
    browser: Browser, key: MeshKey, mesh: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("podrace.dashboard.entrance.reader.CHECKED_SECONDS", 0.0)
    await browser.sign_in(token(key))

    async def give_away() -> None:
        mesh.prepared[NAME].tournament.owner = "bob"

    await stream_ended(browser, f"tournaments/{NAME}/stream", give_away)
    await browser.get(f"tournaments/{NAME}/board", 404)


async def test_what_a_person_has_opened_is_opened_again_for_others_with_their_own_rights(
    url: str, mesh: ScriptedMesh, key: MeshKey
):
    mesh.prepared[NAME].tournament.namespace = "lab"
    async with Browser.open(url) as alice, Browser.open(url) as bob:
        await alice.sign_in(token(key, "alice", namespace="lab"))
        await bob.sign_in(token(key, "bob", "viewer", namespace="lab"))
        seen: list[Any] = []
        async with asyncio.timeout(SECONDS):
            await alice.get(f"tournaments/{NAME}/board")
            async with bob.session.get(f"{url}/api/tournaments/{NAME}/stream") as response:
                async for line in response.content:
                    if not line.startswith(b"data: "):
                        continue
                    event = json.loads(line[6:])
                    seen.append(event["run"])
                    if len(seen) == 1:
                        await alice.post("sign-out", {})
                        mesh.prepared[NAME].submit(0, 499.0)
                    if event["loaded"] and event["points"] == 61 and event["run"] != seen[0]:
                        break


async def test_a_token_that_the_mesh_no_longer_accepts_ends_the_session(
    browser: Browser, key: MeshKey, mesh: ScriptedMesh, monkeypatch: pytest.MonkeyPatch
):
    await browser.sign_in(token(key))
    await browser.get("tournaments")
    await mesh.stop()
    mesh.replace_key(MeshKey(make_pem()))
    await mesh.start()
    assert (await browser.get("tournaments", 401))["code"] == "SIGN_IN"
    assert (await browser.get("session"))["caller"] is None


async def test_a_session_ends_when_its_token_expires(browser: Browser, key: MeshKey, monkeypatch: pytest.MonkeyPatch):
    ends: list[float] = []
    original = Reader.__init__

    def spied(self: Reader, *arguments: Any, **named: Any) -> None:
        ends.append(named["end"] - named["clock"]())
        original(self, *arguments, **named)

    monkeypatch.setattr(sign_in.Reader, "__init__", spied)
    await browser.sign_in(token(key, lifetime=900.0))
    await browser.sign_in(token(key, lifetime=10**6))
    assert 880.0 < ends[0] <= 900.0
    assert 12 * 3600.0 - 10.0 < ends[1] <= 12 * 3600.0


async def test_while_the_mesh_does_not_answer_what_was_shown_stays(browser: Browser, key: MeshKey, mesh: ScriptedMesh):
    await browser.sign_in(token(key))
    assert (await browser.get(f"tournaments/{NAME}/board"))["total"] == 6
    await mesh.stop()
    assert (await browser.get(f"tournaments/{NAME}/board"))["total"] == 6
    assert (await browser.get("session"))["caller"]["name"] == "alice"
