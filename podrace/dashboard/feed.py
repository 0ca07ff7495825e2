"""Keeps what is known about one tournament current, for all pages that show it."""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable

from podrace.client import Client
from podrace.client.calls.tournaments import END_STATES
from podrace.client.reconnect import RETRY_SECONDS, RETRYABLE
from podrace.dashboard.points import SubmissionPoints
from podrace.errors import NotFound, PermissionDenied, PodraceError, Unauthenticated
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, WatchCandidatesResponse
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod
from podrace.tasks import ChangeSignal, cancel_all, wait_at_most
from podrace.tournament.v1.tournament_pb2 import Tournament

MOST_EVENTS = 20_000
"""Events that are kept: the newest."""
MOST_AGENTS = 20_000
"""Agents that are kept: the first."""
BOARD_SECONDS = 1.0
"""Time between two reads of the board, at least."""
ENDED_SECONDS = 5.0
"""Pause between two checks whether an ended tournament was resumed."""
LOADING_SECONDS = 5.0
"""Time that a page waits for the first answer of the leaderboard."""
BATCH = 200
"""Submissions of a page that are added before other requests are handled."""


class TournamentFeed:
    """Follows a tournament with the rights of a client, from `start` to `close`; the attributes are read by the pages.

    feed = TournamentFeed(client, await client.get_tournament(name))
    feed.start()
    ...
    await feed.close()
    """

    def __init__(self, client: Client, tournament: Tournament) -> None:
        """Knows nothing but the tournament.

        Args:
            client: Client of the mesh.
            tournament: Its present state.
        """
        self._client = client
        self.run = uuid.uuid4().hex[:8]
        """Differs between two feeds, whose versions cannot be compared."""
        self.tournament = tournament
        self.pods: list[Pod] = []
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.board: list[Candidate] = []
        self.agents: dict[str, Agent] = {}
        self.points = SubmissionPoints(tournament.create_time.seconds + tournament.create_time.nanos * 1e-9)
        self.loaded = False
        """Whether the submissions from before `start` have been read."""
        self.versions = dict.fromkeys(("tournament", "events", "board", "agents", "points"), 0)
        """Numbers that change with each part, by which pages decide what to read again."""
        self.faults: dict[str, str] = {}
        """Why a part is not current: the error of its last call."""
        self.changes = ChangeSignal()
        self.closed = False
        """Whether it follows no longer."""
        self.refused = False
        """Whether the mesh has refused a part of it to this client."""
        self._resume_token = 0
        self._agents_page = ""
        self._submitted = asyncio.Event()
        self._board_known = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts to follow."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "orchestrator": self._follow_tournament,
            "submissions": self._follow_submissions,
            "leaderboard": self._follow_board,
        }
        self._submitted.set()
        self._tasks = [asyncio.create_task(self._keep(name, once)) for name, once in parts.items()]

    async def close(self) -> None:
        """Stops to follow."""
        self.closed = True
        self.changes.notify_all()
        await cancel_all(*self._tasks)

    async def board_known(self) -> None:
        """Waits until the board was read, but not longer than `LOADING_SECONDS`."""
        await wait_at_most(self._board_known.wait(), LOADING_SECONDS)

    async def _keep(self, part: str, once: Callable[[], Awaitable[None]]) -> None:
        """Repeats calls until the feed is closed. An error that cannot be resolved is kept as fault of the part."""
        while True:
            seconds = RETRY_SECONDS
            try:
                await once()
            except PodraceError as error:
                self._fault(part, error.message)
                if not isinstance(error, RETRYABLE):
                    self.refused |= isinstance(error, Unauthenticated | PermissionDenied | NotFound)
                    if not error.retry_seconds:
                        return
                    seconds = error.retry_seconds
            await asyncio.sleep(seconds)

    def _fault(self, part: str, message: str) -> None:
        if self.faults.get(part) != message:
            self.faults[part] = message
            self.changes.notify_all()

    def _changed(self, part: str, *sections: str) -> None:
        self.faults.pop(part, None)
        for section in sections:
            self.versions[section] += 1
        self.changes.notify_all()

    async def _follow_tournament(self) -> None:
        if self.tournament.state in END_STATES and self._resume_token:
            await asyncio.sleep(ENDED_SECONDS)
            if await self._is_still_ended():
                return
        stream = self._client.watch_tournament(self.tournament.tournament_id, self._resume_token)
        async for update in stream:
            new_agents = update.tournament.agents != self.tournament.agents
            self.tournament, self.pods = update.tournament, list(update.pods)
            self._resume_token = update.resume_token
            self.events.extend(update.events)
            self._changed("orchestrator", "tournament", *(["events"] if update.events else []))
            if new_agents:
                self._submitted.set()

    async def _is_still_ended(self) -> bool:
        """Reads an ended tournament again. Its stream has ended, its last pods have not, and it may be resumed."""
        name = self.tournament.tournament_id
        self.tournament = await self._client.get_tournament(name)
        pods = await self._client.list_pods(name)
        changed = pods != self.pods
        self.pods = pods
        self._changed("orchestrator", *(["tournament"] if changed else []))
        return self.tournament.state in END_STATES

    async def _follow_submissions(self) -> None:
        if not self.loaded:
            await self._load_submissions()
        stream = self._client.watch_candidates(self.tournament, self.points.last_sequence)
        async for update in stream:
            self._submit(update)

    async def _load_submissions(self) -> None:
        """Reads the submissions so far by pages, which takes a fifth of the time that a stream of them takes."""
        async for page in self._client.submission_pages(self.tournament):
            for start in range(0, len(page.candidates), BATCH):
                for candidate in page.candidates[start : start + BATCH]:
                    self.points.add(candidate)
                await asyncio.sleep(0)
            self._changed("submissions", "points")
        self.loaded = True
        self._changed("submissions", "points")

    def _submit(self, update: WatchCandidatesResponse) -> None:
        self.points.add(update.candidate)
        self._submitted.set()
        self._changed("submissions", "points")

    async def _follow_board(self) -> None:
        """Reads the board and new agents after submissions, because a submission may change the ranks of others."""
        await self._submitted.wait()
        self._submitted.clear()
        try:
            self.board = await self._client.list_board(self.tournament)
            await self._read_agents()
        except PodraceError:
            self._submitted.set()
            raise
        self._board_known.set()
        self._changed("leaderboard", "board", "agents")
        await asyncio.sleep(BOARD_SECONDS)

    async def _read_agents(self) -> None:
        """Reads the last known page of agents again, and the pages after it."""
        async for token, page in self._client.agent_pages(self.tournament, self._agents_page):
            self._agents_page = token
            for agent in page.agents:
                if len(self.agents) < MOST_AGENTS:
                    self.agents.setdefault(agent.agent_id, agent)
