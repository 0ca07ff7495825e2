"""Persons sign in, see what they may do, and sign out; a session that has ended asks for a token again."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RUN, MeshThread, opened_page
from gateway_process import GatewayProcess
from scripted_mesh import fill
from test_accessibility import violations
from test_pages import expect_text

from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import claims_of

pytestmark = pytest.mark.browser


@pytest.fixture
def key() -> MeshKey:
    return MeshKey(make_pem())


@pytest.fixture
def thread(folder: Path, key: MeshKey) -> Iterator[MeshThread]:
    """A mesh with a tournament of alice in the namespace lab."""
    found = MeshThread(folder, key)
    fill(found.call(found.mesh.add, RUN), agents=12, points=240)
    found.mesh.prepared[RUN].tournament.namespace = "lab"
    yield found
    found.close()


@pytest.fixture
def gateway(folder: Path, thread: MeshThread) -> Iterator[GatewayProcess]:
    found = GatewayProcess(folder, thread.mesh.address, elsewhere=True, sign_in=True)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def page(chromium: Any, gateway: GatewayProcess) -> Iterator[Any]:
    """A page that has opened the tournament, and is asked for a token."""
    with opened_page(chromium, f"{gateway.url}#/t/{RUN}/board") as found:
        expect_text(found, "h1", "^Sign in$")
        yield found


def token(key: MeshKey, name: str, role: str) -> str:
    return key.sign(claims_of(name, {ROLES_BY_NAME[role]}, namespace="lab", expire_time=time.time() + 3600.0))


def sign_in(page: Any, given: str) -> None:
    page.fill("input[name=token]", given)
    page.keyboard.press("Enter")


def test_the_owner_signs_in_changes_the_tournament_and_signs_out(page: Any, thread: MeshThread, key: MeshKey):
    sign_in(page, token(key, "alice", "user"))
    expect_text(page, "main", "12 curves from 240 evaluations")
    expect_text(page, "#person", "lab/alice, user")
    page.click("text=Pause…")
    page.click("dialog >> text=/^Pause$/")
    expect_text(page, "main", "paused by alice")
    assert ("alice", "PauseTournament", True) in thread.mesh.audited
    page.click("text=Sign out")
    expect_text(page, "h1", "^Sign in$")
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect_text(page, "h1", "^Sign in$")


def test_another_member_of_the_namespace_sees_that_only_the_owner_may_change_it(page: Any, key: MeshKey):
    sign_in(page, token(key, "bob", "user"))
    expect_text(page, "main", "Only its owner alice or an operator may change it")
    assert page.locator("text=Stop…").count() == 0
    assert page.is_visible("text=Use as template")
    assert page.is_visible("#new")


def test_a_viewer_sees_that_nothing_may_be_changed(page: Any, key: MeshKey):
    sign_in(page, token(key, "carol", "viewer"))
    expect_text(page, "main", "Changing it needs the role user")
    expect_text(page, "#person", "lab/carol, viewer")
    assert page.locator("text=Stop…").count() == 0
    assert not page.is_visible("#new")
    page.evaluate("location.hash = '#/new'")
    expect_text(page, "main", "Starting a tournament needs the role user; carol has viewer")
    assert page.is_disabled("button:has-text('Start tournament')")


def test_a_wrong_token_is_refused_and_not_kept(page: Any, key: MeshKey):
    sign_in(page, token(MeshKey(make_pem()), "eve", "operator"))
    expect_text(page, "[role=alert]", "a token that is not known here")
    assert page.input_value("input[name=token]") == ""
    assert page.evaluate("document.activeElement.name") == "token"
    assert page.evaluate("[localStorage.length, sessionStorage.length]")[1] == 0


def test_a_restarted_gateway_asks_again_and_the_page_is_shown_where_it_was(
    page: Any, gateway: GatewayProcess, key: MeshKey
):
    sign_in(page, token(key, "alice", "user"))
    expect_text(page, "main", "12 curves from 240 evaluations")
    gateway.kill()
    expect_text(page, "#connection[data-state=lost]", "Connection to the dashboard lost")
    gateway.start()
    expect_text(page, "h1", "^Sign in$")
    sign_in(page, token(key, "alice", "user"))
    expect_text(page, "h1", f"^{RUN}$")
    expect_text(page, "main", "12 curves from 240 evaluations")
    page.wait_for_selector("#connection[data-state=live]")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_signing_in_has_no_violations(page: Any, axe: str, theme: str, key: MeshKey):
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    page.reload()
    expect_text(page, "h1", "^Sign in$")
    found = violations(page, axe)
    sign_in(page, "guessed")
    page.wait_for_selector("[role=alert]")
    found += violations(page, axe)
    sign_in(page, token(key, "bob", "user"))
    expect_text(page, "main", "Only its owner")
    assert found + violations(page, axe) == []
