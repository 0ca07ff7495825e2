"""Owns the replay: takes every decision of a tournament again from its log and says which came out differently. Pure.

Of the log, only what came from outside is believed: what was scored, in which order it arrived, for each agent when it
was asked for and who had ended or failed by then, and what custom parts answered. Verdicts, ranks, reasons and agents
follow from that and are compared with what was recorded, so that an altered record shows as itself, and not as all that
would follow from it.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from leaderboard.evolution.agents import make, visible_board
from leaderboard.evolution.ancestor import Ancestor
from leaderboard.evolution.history import NOTHING, History, history_of, is_needed
from leaderboard.evolution.proposals import Proposal
from leaderboard.ranking.board import Board, Standing, answer_of, judge_arrival
from leaderboard.store.records import Generation, Submission
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

COMPARED_OF_AGENT = (
    "algorithm",
    "hyperparameters",
    "origin",
    "parent_agent_ids",
    "starting_checkpoint",
    "seed",
    "reason",
    "seat",
    "left_algorithms",
)
COMPARED_OF_CANDIDATE = ("rank", "verdict", "reason")


@dataclass(frozen=True)
class Log:
    """What was recorded of a tournament."""

    tournament_id: str
    """Its name."""
    spec: TournamentSpec
    """Resolved."""
    generations: Sequence[Generation]
    """In the order in which they were made."""
    submissions: Sequence[Submission]
    """By arrival."""
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    """What a custom generator said, by the id of the agent it was asked for."""
    ancestor: Ancestor | None = None
    """The agent of another tournament that it starts from."""


@dataclass
class _Course:
    """What has been decided again so far."""

    log: Log
    board: Board = ()
    arrived: list[Candidate] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    ends: dict[int, list[str]] = field(default_factory=dict)
    """Who had ended when the agent of a position was made and not before."""
    failures: dict[int, list[str]] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    unfinished_children: Counter[str] = field(default_factory=Counter)

    @property
    def seen(self) -> Sequence[Candidate]:
        """What the next decision is taken from."""
        return self.arrived if self.log.spec.synchronous else self.board


def differences(log: Log) -> Iterator[str]:
    """A line for every decision that comes out differently."""
    course = _Course(log)
    for generation in log.generations:
        if generation.ended is not None:
            course.ends.setdefault(generation.ended, []).append(generation.agent.agent_id)
        if generation.failed is not None:
            course.failures.setdefault(generation.failed, []).append(generation.agent.agent_id)
    waiting = deque(log.generations)
    for submission in log.submissions:
        while waiting and waiting[0].after_sequence < submission.answer.candidate.sequence:
            yield from _generate_again(waiting.popleft(), course)
        yield from _judge_again(submission, course)
    for generation in waiting:
        yield from _generate_again(generation, course)
    yield from _final_standings(course)


def _generate_again(generation: Generation, course: _Course) -> Iterator[str]:
    recorded, spec = generation.agent, course.log.spec
    where = f"agent {recorded.agent_id}"
    if generation.ended is not None and generation.ended <= generation.position:
        yield f"{where}: had ended before it was generated"
    _note_ends(generation.position, course)
    agent, depth = make(
        course.log.tournament_id,
        spec,
        recorded.number,
        visible_board(spec, recorded.number, course.seen),
        course.agents,
        course.unfinished_children,
        _history(generation, course),
        course.log.proposals.get(recorded.agent_id),
        course.log.ancestor,
    )
    course.agents[recorded.agent_id] = agent
    course.unfinished.add(recorded.agent_id)
    course.unfinished_children.update(agent.parent_agent_ids)
    yield from _compare(where, recorded, agent, COMPARED_OF_AGENT)
    if depth != generation.depth:
        yield f"{where}: depth was {generation.depth}, is {depth}"


def _note_ends(position: int, course: _Course) -> None:
    for agent_id in course.ends.get(position, ()):
        if agent_id in course.unfinished:
            course.unfinished.remove(agent_id)
            course.unfinished_children.subtract(course.agents[agent_id].parent_agent_ids)
    course.failed.update(course.failures.get(position, ()))


def _history(generation: Generation, course: _Course) -> History:
    if not is_needed(course.log.spec):
        return NOTHING
    return history_of(
        course.log.spec,
        generation.agent.number,
        course.agents.values(),
        course.arrived,
        course.unfinished,
        course.failed,
    )


def _judge_again(submission: Submission, course: _Course) -> Iterator[str]:
    recorded, spec = submission.answer.candidate, course.log.spec
    where = f"submission {recorded.sequence} of {recorded.agent_id}"
    if recorded.agent_id not in course.agents:
        yield f"{where}: was judged before its agent was generated"
        return
    judgement = judge_arrival(course.seen, recorded, spec.evolution.board_capacity, synchronous=spec.synchronous)
    course.board = judgement.board
    course.arrived.append(recorded)
    course.standings |= judgement.standings
    answer = answer_of(judgement, recorded)
    yield from _compare(where, recorded, answer.candidate, COMPARED_OF_CANDIDATE)
    yield from _compare(where, submission.answer, answer, ("best_score",))


def _final_standings(course: _Course) -> Iterator[str]:
    for submission in course.log.submissions:
        candidate = submission.answer.candidate
        if candidate.candidate_id in course.standings:
            where = f"submission {candidate.sequence} of {candidate.agent_id} at the end"
            yield from _compare(
                where, submission.standing, course.standings[candidate.candidate_id], ("verdict", "reason")
            )


def _compare(where: str, recorded: object, again: object, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        then, now = getattr(recorded, name), getattr(again, name)
        if then != now:
            yield f"{where}: {name} was {_line(then)}, is {_line(now)}"


def _line(value: object) -> str:
    return " ".join(str(value).split()) or "nothing"
