"""Provides the Python interface for asyncio.

    from podrace import aio

    async with aio.train("examples/cartpole.toml") as tournament:
        await tournament.wait()
        for candidate in await tournament.candidates():
            print(candidate.rank, candidate.agent_id, candidate.score)

`aio.connect` calls a mesh that runs elsewhere. Every method raises PodraceError.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podrace import rpc
from podrace.api import translation
from podrace.api.home import chosen_home, chosen_store
from podrace.api.records import Agent, Candidate, Champion, Event, LearningPoint, Rows, TournamentStatus
from podrace.api.specifications import Specification, resolved
from podrace.client import Client, resolve
from podrace.client.calls.tournaments import END_STATES
from podrace.client.champion import members_of_champion
from podrace.client.curve.points import CHAMPION
from podrace.client.curve.reading import EPISODES, CurveSettings, read_curve, snapshots_of
from podrace.client.follow import TournamentView, follow_to_end
from podrace.errors import DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from podrace.mesh import open_mesh
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_FAILED, Tournament

if TYPE_CHECKING:
    from podrace.policy.runtime import Policy

CONNECT_SECONDS = 5.0
"""Time limit for an orchestrator to answer the first call."""
STOP_REASON = "stopped through the Python interface"


def _ignore(line: str) -> None:
    pass


def _no_drawing(view: TournamentView) -> None:
    pass


class AsyncTournament:
    """A tournament of a mesh. Each method asks the mesh; none returns a value that was kept.

    Attributes:
        tournament_id: Its name.
        client: Client of the mesh, for calls that this class does not have.
    """

    def __init__(self, client: Client, tournament: Tournament) -> None:
        """Refers to a tournament of the mesh of a client."""
        self.client = client
        self.tournament_id = tournament.tournament_id
        self._tournament = tournament

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tournament_id!r})"

    async def message(self) -> Tournament:
        """Returns the tournament as a message of the contracts, with its specification."""
        return await self.client.get_tournament(self.tournament_id)

    async def status(self) -> TournamentStatus:
        """Returns its state, its counters and its best score."""
        return translation.status_of(await self.message())

    async def wait(self, timeout_seconds: float | None = None) -> TournamentStatus:
        """Waits until it has ended, and returns its final status.

        Args:
            timeout_seconds: Time limit; None: no limit.

        Raises:
            FailedPrecondition: The tournament failed.
            DeadlineExceeded: It has not ended in time; it keeps running.
        """

        async def last_update() -> Tournament:
            async for update in self.client.follow(self._tournament):
                ended = update.tournament
            return ended

        return await self._in_time(last_update(), timeout_seconds)

    async def follow(self, view: TournamentView, timeout_seconds: float | None = None) -> TournamentStatus:
        """Keeps a view current until the tournament has ended; otherwise as `wait`.

        Args:
            view: Updated in place.
            timeout_seconds: Time limit; None: no limit.
        """

        async def viewed() -> Tournament:
            await follow_to_end(self.client, view, draw=_no_drawing, stop=asyncio.Event(), stop_reason=STOP_REASON)
            return view.tournament

        return await self._in_time(viewed(), timeout_seconds)

    async def _in_time(self, following: Awaitable[Tournament], timeout_seconds: float | None) -> TournamentStatus:
        try:
            ended = await asyncio.wait_for(following, timeout_seconds)
        except TimeoutError:
            # With a short time limit, the first answer may not have arrived.
            ended = await self.message()
            if ended.state not in END_STATES:
                raise DeadlineExceeded(
                    f"tournament {self.tournament_id} is still running (waited {timeout_seconds:g} s)"
                ) from None
        return ended_status(ended)

    async def stop(self, reason: str = STOP_REASON) -> TournamentStatus:
        """Cancels it: its pods publish and exit. All data is kept, and `resume` continues it."""
        return translation.status_of(await self.client.cancel_tournament(self.tournament_id, reason))

    async def resume(self) -> TournamentStatus:
        """Continues a cancelled or failed tournament."""
        return translation.status_of(await self.client.resume_tournament(self.tournament_id))

    async def candidates(
        self, *, all_submissions: bool = False, filter: str = "", order_by: str = ""
    ) -> Rows[Candidate]:
        """Returns the candidates on the board, best first, or every submission in order of arrival.

        Args:
            all_submissions: Every submission instead of the board.
            filter: Which; empty: all. Conditions such as `algorithm = ppo AND score > 400`.
            order_by: Fields, each perhaps with `desc`, such as `environment_steps desc`; empty: as above.

        Raises:
            InvalidArgument: The filter or the order cannot be used.
        """
        client = self.client
        read = client.list_submissions if all_submissions else client.list_board
        return Rows(
            (translation.candidate_of(one) for one in await read(self._tournament, filter, order_by)), kind=Candidate
        )

    async def champion(self) -> Champion:
        """Returns its best policy, which is final once it has ended.

        Raises:
            NotFound: There is no candidate yet.
        """
        current = await self.message()
        members = members_of_champion(current)
        if not members:
            raise NotFound(f"tournament {self.tournament_id} has no candidate yet")
        names = {one.agent_id for one in members}
        agents = {name: await self.client.get_agent(self._tournament, name) for name in names}
        return translation.champion_of(current, members, agents)

    async def agents(self, *, filter: str = "", order_by: str = "") -> Rows[Agent]:
        """Returns its agents by number; `filter` and `order_by` as of `candidates`."""
        found = await self.client.list_agents(self._tournament, filter, order_by)
        return Rows((translation.agent_of(one) for one in found), kind=Agent)

    async def events(self, *, filter: str = "", order_by: str = "") -> Rows[Event]:
        """Returns its events, oldest first; `filter` and `order_by` as of `candidates`."""
        found = await self.client.list_events(self.tournament_id, filter, order_by)
        return Rows((translation.event_of(one) for one in found), kind=Event)

    async def curve(
        self, of: str = CHAMPION, *, episodes: int = EPISODES, seed: int = 0, stochastic: bool = False
    ) -> Rows[LearningPoint]:
        """Has pods evaluate its snapshots, and returns the learning curve, as `podrace curve` does.

        Results are kept: a second call with the same arguments evaluates nothing.

        Args:
            of: `champion`, `agents` or `all`.
            episodes: Episodes for each snapshot.
            seed: Number of a set of episodes that were not used for selection.
            stochastic: Samples actions instead of taking the most likely one.

        Raises:
            NotFound: It has no snapshots: `evaluation.snapshot_period` is not set, or none was due yet.
            FailedPrecondition: No snapshot could be evaluated.
        """
        current = await self.message()
        settings = CurveSettings(of=of, episodes=episodes, seed=seed, stochastic=stochastic)
        snapshots = await snapshots_of(self.client, current, of)
        points, failures = await read_curve(self.client, current, snapshots, settings, _ignore)
        if failures and not points:
            raise FailedPrecondition(f"no snapshot could be evaluated: {next(iter(failures.values()))}")
        return Rows((translation.point_of(one) for one in points), kind=LearningPoint)

    async def load_policy(self, candidate_id: str = "", *, agent: str = "", threads: int = 1) -> "Policy":
        """Loads a policy that acts on observations of Gymnasium environments, with numpy and ONNX Runtime alone.

        Args:
            candidate_id: A candidate, or a unique prefix of its id; empty: the champion, which may be an ensemble.
            agent: Name of an agent of the environment, if agents have separate parameters.
            threads: Threads that compute.

        Raises:
            NotFound: There is no such candidate or agent, or its files are not kept.
            Unimplemented: ONNX Runtime is not installed.
        """
        from podrace.policy.loading import fetch_candidates  # needs numpy

        if candidate_id:
            known = [one.candidate_id for one in await self.client.list_submissions(self._tournament)]
            digests = [resolve.resolve_candidate(candidate_id, known, where=self.tournament_id)]
        else:
            digests = [one.manifest_digest for one in await self.client.get_champion_members(self._tournament)]
        return await fetch_candidates(self._tournament, digests, agent=agent, threads=threads)


def ended_status(tournament: Tournament) -> TournamentStatus:
    """Returns the status of a tournament that has ended.

    Raises:
        FailedPrecondition: It failed.
    """
    if tournament.state == TOURNAMENT_STATE_FAILED:
        raise FailedPrecondition(f"tournament {tournament.tournament_id} failed: {tournament.reason}")
    return translation.status_of(tournament)


class AsyncMesh:
    """A running mesh.

    Attributes:
        address: Address of its orchestrator.
        client: Client of the mesh, for calls that this class does not have.
    """

    def __init__(self, client: Client, address: str) -> None:
        """Refers to the mesh of a client."""
        self.client, self.address = client, address

    async def train(
        self,
        specification: Specification,
        overrides: Mapping[str, Any] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncTournament:
        """Creates a tournament and starts it; `wait` waits for its end.

        Args:
            specification: A TOML file, its content as nested dictionaries, or a message.
            overrides: Values that replace those of the specification, by dotted key: `{"pool.maximum_pods": 2}`.
            labels: Short texts to find it by, with the rules of labels in Kubernetes.

        Raises:
            InvalidArgument: The specification is invalid; `violations` has all wrong keys.
        """
        wanted = resolved(specification, overrides)
        return AsyncTournament(self.client, await self.client.create_tournament(wanted, labels=labels))

    async def tournaments(self, filter: str = "", order_by: str = "") -> Rows[TournamentStatus]:
        """Returns tournaments, newest first.

        Args:
            filter: Which; empty: all. Conditions such as `state = RUNNING AND labels.team = rl`.
            order_by: Fields, each perhaps with `desc`, such as `end_time desc`; empty: newest first.

        Raises:
            InvalidArgument: The filter or the order cannot be used.
        """
        return Rows(
            (translation.status_of(one) for one in await self.client.list_tournaments(filter, order_by)),
            kind=TournamentStatus,
        )

    async def tournament(self, name: str = resolve.LATEST) -> AsyncTournament:
        """Returns a tournament.

        Args:
            name: Its id, a unique prefix of it, or `latest`.

        Raises:
            NotFound: There is none.
        """
        known = {one.tournament_id: one for one in await self.client.list_tournaments()}
        return AsyncTournament(self.client, known[resolve.resolve_tournament(name, list(known), where=self.address)])


@contextlib.asynccontextmanager
async def connect(address: str) -> AsyncIterator[AsyncMesh]:
    """Connects to a mesh by the address of its orchestrator, `host:port` or `unix:/path`.

    Raises:
        Unavailable: It does not answer.
    """
    try:
        await rpc.wait_until_serving(address, deadline_seconds=CONNECT_SECONDS)
    except Unavailable as error:
        raise Unavailable(f"{address}: {error.message}; check the address") from None
    async with Client(address) as client:
        yield AsyncMesh(client, address)


@contextlib.asynccontextmanager
async def open_home(home: str | Path | None = None, *, store: str = "") -> AsyncIterator[AsyncMesh]:
    """Runs the mesh of a home for the duration of the block; its processes stop at the end.

    Args:
        home: Folder of the mesh, as `--home` of the command. Default: PODRACE_HOME, or `podrace-home`.
        store: Checkpoint store of a new home. Default: PODRACE_STORE, or a folder in the home.

    Raises:
        FailedPrecondition: Another process runs a mesh there, or a service does not start.
    """
    async with open_mesh(chosen_home(home), store=chosen_store(store)) as address, Client(address) as client:
        yield AsyncMesh(client, address)


@contextlib.asynccontextmanager
async def train(
    specification: Specification,
    overrides: Mapping[str, Any] | None = None,
    *,
    home: str | Path | None = None,
    store: str = "",
) -> AsyncIterator[AsyncTournament]:
    """Starts a tournament on the mesh of a home, which runs for the duration of the block.

    Arguments and errors are those of `AsyncMesh.train` and `open_home`.
    """
    wanted = resolved(specification, overrides)
    async with open_home(home, store=store) as mesh:
        yield await mesh.train(wanted)
