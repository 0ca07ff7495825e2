"""Shows the progress of a tournament: in place on a terminal, as a live cell output in a notebook, or not at all."""

import io
import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

from podrace.client.follow import TournamentView

COLUMNS = 110
"""Width of the live view of a notebook."""
_PAGE = '<pre style="line-height:1.2;font-family:monospace">{code}</pre>'


class ProgressDisplay(Protocol):
    """Draws a tournament several times a second, within a `with` block."""

    def __enter__(self) -> Self:
        """Starts to draw."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves what was drawn last."""
        ...

    def draw(self, view: TournamentView) -> None:
        """Draws the current state."""
        ...


def progress_display(wanted: bool | None) -> ProgressDisplay | None:
    """Returns how progress is shown; None: it is not.

    Args:
        wanted: Whether to show it; None: in a notebook, and if stderr is a terminal.
    """
    if wanted is False:
        return None
    if in_notebook():
        return NotebookView()
    if wanted or sys.stderr.isatty():
        from podrace.cli.terminal.output import console  # what draws is imported only where it is needed
        from podrace.cli.views.live_table import LiveTable

        return LiveTable(console(stderr=True))
    return None


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


class NotebookView:
    """Shows a running tournament as the output of a cell, which is replaced in place."""

    def __init__(self) -> None:
        """Shows nothing until `draw`."""
        self._handle: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def draw(self, view: TournamentView) -> None:
        """Replaces the output."""
        from IPython.display import HTML, display

        page = HTML(as_html(view))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


def as_html(view: TournamentView) -> str:
    """Returns the live table of a tournament as HTML, in which text of others is escaped."""
    from podrace.cli.terminal.output import EscapingConsole
    from podrace.cli.views.live_table import render

    console = EscapingConsole(
        file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True, highlight=False, markup=False, emoji=False
    )
    console.print(render(view, now=time.monotonic()))
    return console.export_html(inline_styles=True, code_format=_PAGE)
