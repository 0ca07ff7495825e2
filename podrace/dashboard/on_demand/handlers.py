"""Answers requests for what is computed on demand: a page starts a job, asks for its state, and reads its result."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.client.champion import members_of_champion
from podrace.client.evaluating import evaluated
from podrace.dashboard import parameters, views
from podrace.dashboard.answers import answer
from podrace.dashboard.entrance.reader import reader_of
from podrace.dashboard.feed import TournamentFeed
from podrace.dashboard.feed_cache import FeedCache
from podrace.dashboard.on_demand import reports
from podrace.dashboard.on_demand.episodes import CONTENT_TYPES, LARGEST_SEED, Episode, EpisodeStudio
from podrace.dashboard.on_demand.jobs import Job, JobQueue, JobState
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, Unimplemented

REPORT_SECONDS = 1800.0
"""Time limit of a report, with the time in which it waits for a pod."""
LONGEST_NAME = 100
NO_EPISODES = (
    "a dashboard that serves multiple users draws no episodes; `podrace render TOURNAMENT` draws them on your machine"
)


@dataclass
class OnDemandHandlers:
    """Handlers of these requests."""

    feeds: FeedCache
    evaluations: JobQueue
    drawings: JobQueue
    studio: EpisodeStudio

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes of the handlers."""
        inner = "/api/tournaments/{tournament}"
        return [
            web.get(f"{inner}/champion", self.champion),
            web.post(f"{inner}/report", self.report),
            web.post(f"{inner}/episode", self.episode),
            web.get("/api/jobs/{job}", self.job),
            web.get("/api/jobs/{job}/file", self.file),
        ]

    async def _feed(self, request: web.Request) -> TournamentFeed:
        name = parameters.identity(request.match_info, "tournament", required=True)
        return await self.feeds.get(name, reader_of(request))

    async def champion(self, request: web.Request) -> web.Response:
        """Returns the champion, and the reports that the specification has."""
        tournament = (await self._feed(request)).tournament
        members = [
            {"agent_id": one.agent_id, "candidate_id": one.manifest_digest} for one in members_of_champion(tournament)
        ]
        return answer({"members": members, "reports": reports.choices(tournament)})

    async def report(self, request: web.Request) -> web.Response:
        """Has a pod evaluate the champion for a report of the specification, unless that was done already."""
        tournament = (await self._feed(request)).tournament
        body = parameters.body_of(await request.read())
        name = parameters.text_in(body, "report", longest=LONGEST_NAME)
        if why := reports.refusal(tournament, name):
            raise FailedPrecondition(f"report {views.text(name)}: {why}")
        first, *others = members_of_champion(tournament)
        spec, reader = tournament.spec.reports[name], reader_of(request)

        async def work() -> Evaluation:
            # The session of the reader may end before the evaluation does.
            async with reader.open_client() as client:
                return await evaluated(
                    client,
                    tournament,
                    first,
                    members=others,
                    episodes=spec.episodes,
                    options=spec.options,
                    deadline_seconds=REPORT_SECONDS,
                )

        key = key_of("report", tournament.tournament_id, name, [first, *others])
        return answer(shown(self.evaluations.start(key, tournament.tournament_id, work, reader.person)))

    async def episode(self, request: web.Request) -> web.Response:
        """Draws an episode of the champion, or of an agent on the board, unless that was done already.

        Its environment is that of the evaluations, or of a report.
        """
        feed = await self._feed(request)
        if reader_of(request).is_person:
            raise Unimplemented(NO_EPISODES)
        body = parameters.body_of(await request.read())
        seed = body.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
            raise InvalidArgument(f"seed: expected a whole number from 0 to {LARGEST_SEED}")
        tournament, chosen = feed.tournament, policy_of(feed, parameters.text_in(body, "agent", longest=LONGEST_NAME))
        name = parameters.text_in(body, "report", longest=LONGEST_NAME)
        if name and (why := reports.refusal(tournament, name)):
            raise FailedPrecondition(f"report {views.text(name)}: {why}")
        options = tournament.spec.reports[name].options if name else tournament.spec.evaluation.options

        async def work() -> Episode:
            return await self.studio.draw(tournament, chosen, options, seed)

        key = key_of("episode", tournament.tournament_id, f"{name} {seed}", chosen)
        return answer(shown(self.drawings.start(key, tournament.tournament_id, work)))

    async def _find(self, request: web.Request) -> Job:
        """Returns a job of a tournament that the reader may read."""
        key = parameters.identity(request.match_info, "job", required=True)
        job = self.evaluations.find(key) or self.drawings.find(key)
        if job is None:
            raise NotFound("the dashboard does not know this job, because it was started again; ask for it again")
        reader = reader_of(request)
        if reader.is_person:
            await reader.may_read(job.tournament_id)
        return job

    async def job(self, request: web.Request) -> web.Response:
        """Returns the state of a job, and its result."""
        return answer(shown(await self._find(request)))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Returns the video of an episode; browsers ask for parts of it."""
        job = await self._find(request)
        if job.state is not JobState.DONE or not isinstance(job.result, Episode):
            raise NotFound("the job has no file")
        episode = job.result
        response = web.FileResponse(episode.file)
        response.content_type = CONTENT_TYPES[episode.file.suffix]
        return response


def policy_of(feed: TournamentFeed, agent: str) -> list[Checkpoint]:
    """Returns the checkpoints of the champion, or that of an agent on the board.

    Raises:
        NotFound: There is no candidate yet, or the agent has none on the board.
    """
    if not agent:
        found = members_of_champion(feed.tournament)
    else:
        found = [
            Checkpoint(agent_id=one.agent_id, manifest_digest=one.candidate_id)
            for one in feed.board
            if one.agent_id == agent
        ][:1]
    if not found:
        raise NotFound(f"agent {views.text(agent)}: not on the board" if agent else "there is no candidate yet")
    return found


def key_of(kind: str, tournament_id: str, what: str, checkpoints: Sequence[Checkpoint]) -> str:
    """Returns the id of a job: the same for the same work."""
    parts = [kind, tournament_id, what, *(one.manifest_digest for one in checkpoints)]
    return f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"


def shown(job: Job) -> dict[str, Any]:
    """Shape of a job."""
    found: dict[str, Any] = {"job": job.key, "state": job.state.value, "error": views.text(job.error), "result": None}
    if job.state is JobState.DONE:
        found["result"] = _result(job)
    return found


def _result(job: Job) -> dict[str, Any]:
    if isinstance(job.result, Evaluation):
        return reports.report(job.result)
    episode: Episode = job.result
    facts = episode.facts
    return {
        "file": f"/api/jobs/{job.key}/file",
        "video": episode.file.suffix == ".mp4",
        "steps": int(facts["steps"]),
        "episode_return": views.number(float(facts["episode_return"])),
        "ended": bool(facts["ended"]),
    }


@contextlib.asynccontextmanager
async def on_demand(feeds: FeedCache, *, trusted: bool) -> AsyncIterator[OnDemandHandlers]:
    """Provides the handlers during the block. Jobs that have not ended are cancelled at its end.

    Args:
        feeds: The feeds of the tournaments.
        trusted: Whether specifications may name user code, because the mesh is that of the own home.
    """
    studio = EpisodeStudio(trusted=trusted)
    evaluations = JobQueue(running=4, unfinished=16, kept=50, unfinished_of_person=3)
    drawings = JobQueue(running=1, unfinished=8, kept=8, discard=Episode.remove)
    try:
        yield OnDemandHandlers(feeds, evaluations, drawings, studio)
    finally:
        await evaluations.close()
        await drawings.close()
        studio.close()
