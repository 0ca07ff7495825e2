"""Owns a place on the terminal that is drawn over."""

from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live


class InPlace:
    """Draws over what it drew before, on a terminal; the last picture stays."""

    def __init__(self, console: Console) -> None:
        """Shows nothing yet."""
        self.console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, picture: RenderableType) -> None:
        """Draws a picture."""
        self._live.update(picture, refresh=True)

    def tell(self, line: str) -> None:
        """Says something above the picture."""
        self.console.print(line, style="yellow")
