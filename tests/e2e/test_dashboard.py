"""The dashboard runs the mesh of a home, or joins the one that runs, and leaves nothing when it stops."""

import http.cookiejar
import json
import signal
import subprocess
import urllib.request
from typing import Any

import pytest
from homes import Home, wait_for

pytestmark = pytest.mark.e2e


class Browser:
    """Requests with the cookie that the URL with the token gives."""

    def __init__(self, url: str) -> None:
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )
        self.origin = url.partition("/?")[0]
        self._opener.open(url, timeout=20).read()

    def get(self, path: str) -> Any:
        return json.load(self._opener.open(f"{self.origin}/api/{path}", timeout=20))

    def post(self, path: str, body: Any) -> Any:
        headers = {
            "Content-Type": "application/json",
            "Origin": self.origin,
            "X-Podrace-Change": self.get("session")["change"],
        }
        request = urllib.request.Request(f"{self.origin}/api/{path}", json.dumps(body).encode(), headers)
        return json.load(self._opener.open(request, timeout=60))


def start(home: Home) -> tuple[subprocess.Popen[str], Browser]:
    token = str(home.path.parent / "dashboard-token")
    process = home.start("dashboard", "--listen", "127.0.0.1:0", "--token-file", token)
    assert process.stdout is not None
    return process, Browser(process.stdout.readline().strip())


def test_a_tournament_is_started_watched_and_deleted_in_a_dashboard_that_runs_the_mesh(home: Home):
    process, browser = start(home)
    text = home.spec("environment_steps = 8192", pool="maximum_pods = 1").read_text()
    created = browser.post("tournaments", {"specification": text, "request_id": "one"})
    name = created["tournament_id"]
    code, _, err = home.run("train", str(home.spec("environment_steps = 8192")))
    assert code == 1
    assert "to dashboard" in err
    ended = wait_for(
        lambda: browser.get(f"tournaments/{name}")["state"] == "completed", 90, what="the end of the tournament"
    )
    assert ended
    board = wait_for(lambda: browser.get(f"tournaments/{name}/board")["entries"], what="the board")
    assert board[0]["rank"] == 1
    curves = wait_for(lambda: browser.get(f"tournaments/{name}/curves")["series"], what="learning curves")
    assert {one["algorithm"] for one in curves} == {"ppo"}
    parts = browser.get(f"tournaments/{name}/checkpoints/{board[0]['candidate_id']}")
    assert parts["size_bytes"] > 0
    wait_for(lambda: not browser.get(f"tournaments/{name}/pods")["total"], 60, what="the end of the pods")
    assert browser.post(f"tournaments/{name}/delete", {"confirm": name}) == {"deleted": name}
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert home.left_behind() == []
