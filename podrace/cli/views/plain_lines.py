"""Shows the progress of a tournament as a line every few seconds, if the output is not a terminal."""

import math
import time
from collections.abc import Callable
from types import TracebackType

from podrace.cli.terminal import formats
from podrace.cli.views.progress import elapsed_seconds, progress
from podrace.client.calls.tournaments import END_STATES
from podrace.client.follow import TournamentView

LINE_SECONDS = 5.0


def line(view: TournamentView, *, now: float) -> str:
    """Returns the progress of a tournament in one line.

    Args:
        view: State of the tournament.
        now: Current time on the monotonic clock, as `view.last_update`.
    """
    tournament = view.tournament
    elapsed, best, steps = progress(tournament, elapsed_seconds(tournament, now - view.last_update), view.first_score)
    parts = [
        tournament.tournament_id,
        formats.state(tournament),
        elapsed.text,
        f"{best.name} {best.text}",
        f"{steps.text} steps",
        f"{formats.count(tournament.steps_per_second)} steps/s",
        formats.agents(tournament),
        formats.things(len(view.pods), "pod"),
    ]
    return "  ".join(parts)


class PlainLines:
    """Writes a line every `LINE_SECONDS`, and one when the tournament has ended."""

    def __init__(self, notify: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the function that writes a line, and a monotonic clock in seconds."""
        self.notify = notify
        self._clock = clock
        self._due = clock()

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the lines as they are."""

    def draw(self, view: TournamentView) -> None:
        """Writes a line if it is time for the next one."""
        now = self._clock()
        ended = view.tournament.state in END_STATES
        if now >= self._due or (ended and self._due < math.inf):
            self._due = math.inf if ended else now + LINE_SECONDS
            self.notify(line(view, now=now))
