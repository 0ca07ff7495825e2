"""Redraws an area of the terminal in place."""

from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from podrace.printable import printable


class LiveArea:
    """Draws over its previous content on a terminal. The last content stays visible."""

    def __init__(self, console: Console) -> None:
        """Creates an area on a console; it is shown within a `with` block."""
        self.console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, content: RenderableType) -> None:
        """Replaces the content."""
        self._live.update(content, refresh=True)

    def notify(self, line: str) -> None:
        """Prints a message above the area."""
        self.console.print(printable(line), style="yellow")
