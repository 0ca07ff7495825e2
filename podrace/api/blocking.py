"""Provides the Python interface for scripts and notebooks: every call blocks until it has its answer.

    import podrace

    tournament = podrace.train("examples/cartpole.toml")
    print(tournament.champion().score)

Every method raises PodraceError.
"""

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from podrace.api import aio, background
from podrace.api.background import CLOSED, HeldContext
from podrace.api.display import ProgressDisplay, progress_display
from podrace.api.home import chosen_home
from podrace.api.records import Agent, Candidate, Champion, Event, LearningPoint, Rows, TournamentStatus
from podrace.api.specifications import Specification, resolved
from podrace.client import resolve
from podrace.client.curve.points import CHAMPION
from podrace.client.curve.reading import EPISODES
from podrace.client.follow import DRAW_SECONDS, TournamentView
from podrace.errors import FailedPrecondition
from podrace.mesh.home import Folders
from podrace.mesh.store_choice import choose_store
from podrace.tournament.v1 import tournament_pb2

if TYPE_CHECKING:
    from podrace.policy.runtime import Policy

Result = TypeVar("Result")

_HOMES_LOCK = threading.Lock()


@dataclass
class RunningHome:
    """A mesh that this process runs, which stops when its last user closes it."""

    held: HeldContext[aio.AsyncMesh]
    users: int = 0

    def leave(self) -> None:
        """Counts one user less."""
        with _HOMES_LOCK:
            self.users -= 1
            if not self.users:
                self.held.close()


_HOMES: dict[Path, RunningHome] = {}
"""Meshes that this process runs, by home."""


class Tournament:
    """A tournament of a mesh. Each method asks the mesh; none returns a value that was kept.

    Attributes:
        mesh: The mesh that it belongs to.
    """

    def __init__(self, mesh: "Mesh", tournament: aio.AsyncTournament) -> None:
        """Refers to a tournament of a mesh."""
        self.mesh = mesh
        self._tournament = tournament

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tournament_id!r})"

    @property
    def tournament_id(self) -> str:
        """Its name."""
        return self._tournament.tournament_id

    def message(self) -> tournament_pb2.Tournament:
        """Returns the tournament as a message of the contracts, with its specification."""
        return self.mesh.run(self._tournament.message())

    def status(self) -> TournamentStatus:
        """Returns its state, its counters and its best score."""
        return self.mesh.run(self._tournament.status())

    def wait(self, timeout_seconds: float | None = None, *, progress: bool | None = None) -> TournamentStatus:
        """Waits until it has ended, and returns its final status. An interrupt ends the waiting, not the tournament.

        Args:
            timeout_seconds: Time limit; None: no limit.
            progress: Whether to show its progress; None: in a notebook, and if stderr is a terminal.

        Raises:
            FailedPrecondition: The tournament failed.
            DeadlineExceeded: It has not ended in time; it keeps running.
        """
        screen = progress_display(progress)
        if screen is None:
            return self.mesh.run(self._tournament.wait(timeout_seconds))
        return self._shown(screen, timeout_seconds)

    def _shown(self, screen: ProgressDisplay, timeout_seconds: float | None) -> TournamentStatus:
        view = TournamentView(self.message())
        future = self.mesh.submit(self._tournament.follow(view, timeout_seconds))
        try:
            with screen:
                while not future.done():
                    screen.draw(view)
                    concurrent.futures.wait([future], DRAW_SECONDS)
                screen.draw(view)
            return future.result()
        finally:
            future.cancel()

    def stop(self, reason: str = aio.STOP_REASON) -> TournamentStatus:
        """Cancels it: its pods publish and exit. All data is kept, and `resume` continues it."""
        return self.mesh.run(self._tournament.stop(reason))

    def resume(self) -> TournamentStatus:
        """Continues a cancelled or failed tournament."""
        return self.mesh.run(self._tournament.resume())

    def candidates(self, *, all_submissions: bool = False, filter: str = "", order_by: str = "") -> Rows[Candidate]:
        """Returns the candidates on the board, best first, or every submission; as `AsyncTournament.candidates`."""
        wanted = self._tournament.candidates(all_submissions=all_submissions, filter=filter, order_by=order_by)
        return self.mesh.run(wanted)

    def champion(self) -> Champion:
        """Returns its best policy, which is final once it has ended.

        Raises:
            NotFound: There is no candidate yet.
        """
        return self.mesh.run(self._tournament.champion())

    def agents(self, *, filter: str = "", order_by: str = "") -> Rows[Agent]:
        """Returns its agents by number; `filter` and `order_by` as of `candidates`."""
        return self.mesh.run(self._tournament.agents(filter=filter, order_by=order_by))

    def events(self, *, filter: str = "", order_by: str = "") -> Rows[Event]:
        """Returns its events, oldest first; `filter` and `order_by` as of `candidates`."""
        return self.mesh.run(self._tournament.events(filter=filter, order_by=order_by))

    def curve(
        self, of: str = CHAMPION, *, episodes: int = EPISODES, seed: int = 0, stochastic: bool = False
    ) -> Rows[LearningPoint]:
        """Has pods evaluate its snapshots, and returns the learning curve; as `AsyncTournament.curve`."""
        return self.mesh.run(self._tournament.curve(of, episodes=episodes, seed=seed, stochastic=stochastic))

    def load_policy(self, candidate_id: str = "", *, agent: str = "", threads: int = 1) -> "Policy":
        """Loads a policy that acts on observations of Gymnasium environments; as `AsyncTournament.load_policy`."""
        return self.mesh.run(self._tournament.load_policy(candidate_id, agent=agent, threads=threads))


class Mesh:
    """A running mesh; a context manager that closes it at the end."""

    def __init__(self, held: HeldContext[aio.AsyncMesh], leave: Callable[[], None]) -> None:
        """Uses an open mesh until `leave` is called; `connect` and `open_home` create it."""
        self._held, self._leave, self._left = held, leave, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    @property
    def address(self) -> str:
        """Address of its orchestrator."""
        return self._held.value.address

    @property
    def closed(self) -> bool:
        """Whether it is closed, or has stopped because of an error."""
        return self._left or self._held.closed

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine that calls the mesh, and returns its result."""
        return background.run(self._within(work))

    def submit(self, work: Coroutine[Any, Any, Result]) -> "concurrent.futures.Future[Result]":
        """Starts a coroutine that calls the mesh; its future has the result."""
        return background.submit(self._within(work))

    async def _within(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._left:
            work.close()
            raise FailedPrecondition(CLOSED)
        return await self._held.within(work)

    def train(
        self,
        specification: Specification,
        overrides: Mapping[str, Any] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> Tournament:
        """Creates a tournament and starts it; `wait` waits for its end. As `AsyncMesh.train`."""
        return Tournament(self, self.run(self._held.value.train(specification, overrides, labels=labels)))

    def tournaments(self, filter: str = "", order_by: str = "") -> Rows[TournamentStatus]:
        """Returns tournaments, newest first. As `AsyncMesh.tournaments`."""
        return self.run(self._held.value.tournaments(filter, order_by))

    def tournament(self, name: str = resolve.LATEST) -> Tournament:
        """Returns a tournament by its id, a unique prefix of it, or `latest`; raises NotFound if there is none."""
        return Tournament(self, self.run(self._held.value.tournament(name)))

    def close(self) -> None:
        """Closes the connections. A mesh of a home stops when all that `open_home` and `train` returned are closed."""
        if not self._left:
            self._left = True
            self._leave()


def connect(address: str) -> Mesh:
    """Connects to a mesh by the address of its orchestrator, `host:port` or `unix:/path`.

    Raises:
        Unavailable: It does not answer.
    """
    held = HeldContext(aio.connect(address))
    return Mesh(held, held.close)


def open_home(home: str | Path | None = None, *, store: str = "") -> Mesh:
    """Runs the mesh of a home until it is closed or the process exits.

    Further calls for the same home use the mesh that runs already. It stops when each of its users has closed it.

    Args:
        home: Folder of the mesh, as `--home` of the command. Default: PODRACE_HOME, or `podrace-home`.
        store: Checkpoint store of a new home. Default: PODRACE_STORE, or a folder in the home.

    Raises:
        FailedPrecondition: Another process runs a mesh there, a service does not start, or the home has another store.
    """
    folder = chosen_home(home).expanduser().resolve()
    with _HOMES_LOCK:
        running = _HOMES.get(folder)
        if running is None or running.held.closed:
            running = _HOMES[folder] = RunningHome(HeldContext(aio.open_home(folder, store=store)))
        elif store:
            choose_store(Folders.of(folder), store, writes=True)
        running.users += 1
    return Mesh(running.held, running.leave)


def train(
    specification: Specification,
    overrides: Mapping[str, Any] | None = None,
    *,
    address: str = "",
    home: str | Path | None = None,
    store: str = "",
    wait: bool = True,
    progress: bool | None = None,
) -> Tournament:
    """Trains a tournament, on the mesh of a home or on a mesh that runs elsewhere.

    An interrupt (Ctrl-C) stops the tournament; `Tournament.resume` continues it. The mesh of a home runs until the
    process exits, or until `close` of `Tournament.mesh`. If no tournament could be started, it stops at once.

    Args:
        specification: A TOML file, its content as nested dictionaries, or a message.
        overrides: Values that replace those of the specification, by dotted key: `{"pool.maximum_pods": 2}`.
        address: Address of an orchestrator. Default: the mesh of a home.
        home: As `open_home`.
        store: As `open_home`.
        wait: Whether to return after the end of the tournament, or as soon as it has started.
        progress: Whether to show progress; None: in a notebook, and if stderr is a terminal.

    Raises:
        InvalidArgument: The specification is invalid; `violations` has all wrong keys.
        FailedPrecondition: The tournament failed, or the mesh cannot be opened.
        PodraceError: The mesh does not answer.
    """
    wanted = resolved(specification, overrides)
    mesh = connect(address) if address else open_home(home, store=store)
    try:
        tournament = mesh.train(wanted)
    except BaseException:
        mesh.close()
        raise
    if wait:
        try:
            tournament.wait(progress=progress)
        except KeyboardInterrupt:
            tournament.stop()
            raise
    return tournament
