import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from podrace.api import display
from podrace.client.follow import TournamentView
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_RUNNING, Tournament


class ZMQInteractiveShell:
    """What IPython calls the shell of a kernel."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fake IPython; the list has the pages that were shown, in order."""
    shown: list[str] = []
    kernel, pages = ModuleType("IPython"), ModuleType("IPython.display")

    def show(page: str, display_id: bool) -> Any:
        assert display_id
        shown.append(page)
        return SimpleNamespace(update=shown.append)

    kernel.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    pages.HTML, pages.display = str, show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", pages)
    return shown


def view(event: str = "") -> TournamentView:
    tournament = Tournament(tournament_id="cartpole-abc123", state=TOURNAMENT_STATE_RUNNING, environment_steps=12_345)
    tournament.spec.objective.environment_steps = 100_000
    return TournamentView(tournament, last_event=event)


def test_nothing_is_shown_without_a_terminal_and_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False))
    assert display.progress_display(None) is None


@pytest.mark.usefixtures("notebook")
def test_nothing_is_shown_if_the_caller_turns_it_off() -> None:
    assert display.progress_display(False) is None


def test_a_notebook_shows_one_output_that_is_replaced(notebook: list[str]) -> None:
    screen = display.progress_display(None)
    assert isinstance(screen, display.NotebookView)
    with screen:
        screen.draw(view())
        screen.draw(view("pod p1 started"))
    assert len(notebook) == 2
    assert "cartpole-abc123" in notebook[0]
    assert "12.3k of 100k" in notebook[0]
    assert "pod p1 started" in notebook[1]


def test_text_of_others_is_escaped_in_a_notebook() -> None:
    page = display.as_html(view("<script>alert(1)</script>\x1b[2J"))
    assert "<script>" not in page
    assert "\x1b" not in page
