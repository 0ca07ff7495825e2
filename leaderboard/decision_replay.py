"""Replays a tournament: makes every decision again from the recorded inputs and reports which result differs. Pure.

The inputs are taken from the log: the scores, the order in which they arrived, for each agent when it was requested and
which agents had ended or failed by then, and the answers of plugins. Verdicts, ranks, reasons and agents are computed
again and compared with the recorded ones. An altered record is therefore reported once, and not again with every later
decision that depends on it.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from leaderboard.evolution.agents import make, needs_history, trials_of, visible_board, visible_trials
from leaderboard.evolution.ancestor import Ancestor
from leaderboard.evolution.history import NOTHING, History, history_of
from leaderboard.evolution.proposals import Proposal
from leaderboard.evolution.strategy import NoWork
from leaderboard.evolution.trials import ClockReading, Trials
from leaderboard.ranking.board import Board, Standing, answer_of, judge_arrival
from leaderboard.ranking.score_history import RoundHistory, ScoreHistory, add_estimate
from leaderboard.recorded_wording import current_wording
from leaderboard.store.records import Generation, Submission
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

COMPARED_OF_AGENT = (
    "algorithm",
    "hyperparameters",
    "origin",
    "parent_agent_ids",
    "starting_checkpoint",
    "mates",
    "seed",
    "reason",
    "seat",
    "left_algorithms",
    "trial",
    "assignment_environment_steps",
    "rung",
)
COMPARED_BEFORE_TRIALS = tuple(name for name in COMPARED_OF_AGENT if name != "trial")
"""Agents of versions without trials do not record theirs."""
COMPARED_OF_CANDIDATE = ("rank", "verdict", "reason")
ESTIMATED = ("estimate", "estimate_error", "episode_correlation")
ROUNDING = 1e-9
"""Relative difference of numbers that counts as equal: machines round logarithms differently."""


@dataclass(frozen=True)
class DecisionLog:
    """The records of a tournament."""

    tournament_id: str
    """The tournament."""
    spec: TournamentSpec
    """Its resolved specification."""
    generations: Sequence[Generation]
    """Its agents, in the order in which they were generated."""
    submissions: Sequence[Submission]
    """By arrival."""
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    """Results of calling a generator plugin, by the id of the agent that was requested."""
    ancestor: Ancestor | None = None
    """The agent of another tournament that it starts from."""


@dataclass
class _ReplayState:
    """The state after the decisions that were made again so far."""

    log: DecisionLog
    board: Board = ()
    history: ScoreHistory = field(default_factory=ScoreHistory)
    round_history: RoundHistory = field(default_factory=RoundHistory)
    arrived: list[Candidate] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    ends: dict[int, list[str]] = field(default_factory=dict)
    """Agents that had ended when the agent of a position was generated, and not at the one before."""
    failures: dict[int, list[str]] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    unfinished_children: Counter[str] = field(default_factory=Counter)
    trials: Trials | None = None
    """The log so far, folded; None in a synchronous tournament or without a fold."""

    @property
    def seen(self) -> Sequence[Candidate]:
        """The candidates that the next decision is based on."""
        return self.arrived if self.log.spec.synchronous else self.board


def differences(log: DecisionLog) -> Iterator[str]:
    """Yields a line for every result that differs from the recorded one."""
    state = _ReplayState(log, trials=None if log.spec.synchronous else trials_of(log.spec))
    for generation in log.generations:
        if generation.ended is not None:
            state.ends.setdefault(generation.ended, []).append(generation.agent.agent_id)
        if generation.failed is not None:
            state.failures.setdefault(generation.failed, []).append(generation.agent.agent_id)
    waiting = deque(log.generations)
    for submission in log.submissions:
        while waiting and waiting[0].after_sequence < submission.answer.candidate.sequence:
            yield from _generate_again(waiting.popleft(), state)
        yield from _judge_again(submission, state)
    for generation in waiting:
        yield from _generate_again(generation, state)
    yield from _final_standings(state)


def _generate_again(generation: Generation, state: _ReplayState) -> Iterator[str]:
    recorded, spec = generation.agent, state.log.spec
    where = f"agent {recorded.agent_id}"
    if generation.ended is not None and generation.ended <= generation.position:
        yield f"{where}: had ended before it was generated"
    _note_ends(generation.position, state)
    made = make(
        state.log.tournament_id,
        spec,
        recorded.number,
        visible_board(spec, recorded.number, state.seen),
        state.agents,
        state.unfinished_children,
        _history(generation, state),
        state.log.proposals.get(recorded.agent_id),
        state.log.ancestor,
        _trials(recorded.number, state),
        ClockReading.of(recorded),
    )
    if isinstance(made, NoWork):
        yield f"{where}: would not be generated: {made.reason}"
        return
    agent, depth = made
    _copy_reading(recorded, agent)
    state.agents[recorded.agent_id] = agent
    if state.trials is not None:
        state.trials.handed_out(agent)
    state.unfinished.add(recorded.agent_id)
    state.unfinished_children.update(agent.parent_agent_ids)
    names = COMPARED_OF_AGENT if recorded.HasField("trial") else COMPARED_BEFORE_TRIALS
    yield from _compare(where, recorded, agent, names)
    if depth != generation.depth:
        yield f"{where}: depth was {generation.depth}, is {depth}"


def _note_ends(position: int, state: _ReplayState) -> None:
    failed = state.failures.get(position, ())
    for agent_id in state.ends.get(position, ()):
        if agent_id in state.unfinished:
            state.unfinished.remove(agent_id)
            state.unfinished_children.subtract(state.agents[agent_id].parent_agent_ids)
    state.failed.update(failed)
    if state.trials is not None:
        ended = {*state.ends.get(position, ()), *failed} & state.agents.keys()
        for agent_id in sorted(ended, key=lambda name: state.agents[name].number):
            state.trials.ended(agent_id, failed=agent_id in state.failed)


def _history(generation: Generation, state: _ReplayState) -> History:
    if not needs_history(state.log.spec):
        return NOTHING
    return history_of(
        state.log.spec,
        generation.agent.number,
        state.agents.values(),
        state.arrived,
        state.unfinished,
        state.failed,
    )


def _trials(number: int, state: _ReplayState) -> Trials | None:
    spec = state.log.spec
    if not spec.synchronous:
        return state.trials
    return visible_trials(spec, number, state.agents.values(), state.arrived, state.failed)


def _copy_reading(recorded: Agent, again: Agent) -> None:
    """Copies what was read from outside when the agent was generated."""
    again.pod_id = recorded.pod_id


def _judge_again(submission: Submission, state: _ReplayState) -> Iterator[str]:
    recorded, spec = submission.answer.candidate, state.log.spec
    where = f"submission {recorded.sequence} of {recorded.agent_id}"
    if recorded.agent_id not in state.agents:
        yield f"{where}: was judged before its agent was generated"
        return
    yield from _estimate_again(where, recorded, state)
    judgement = judge_arrival(state.seen, recorded, spec.evolution.board_capacity, synchronous=spec.synchronous)
    state.board = judgement.board
    state.arrived.append(recorded)
    if state.trials is not None:
        state.trials.scored(recorded)
    state.standings |= judgement.standings
    answer = answer_of(judgement, recorded)
    yield from _compare(where, recorded, answer.candidate, COMPARED_OF_CANDIDATE)
    yield from _compare(where, submission.answer, answer, ("best_score",))


def _estimate_again(where: str, recorded: Candidate, state: _ReplayState) -> Iterator[str]:
    """Compares what a candidate ranks by; candidates of earlier versions have no estimate."""
    spec = state.log.spec
    history = state.round_history.of(spec, state.arrived, recorded) if spec.synchronous else state.history
    if recorded.HasField("estimate"):
        again = Candidate()
        again.CopyFrom(recorded)
        add_estimate(again, history)
        for name in ESTIMATED:
            then, now = getattr(recorded, name), getattr(again, name)
            if not math.isclose(then, now, rel_tol=ROUNDING, abs_tol=ROUNDING):
                yield f"{where}: {name} was {then:g}, is {now:g}"
    state.history.add(recorded)


def _final_standings(state: _ReplayState) -> Iterator[str]:
    for submission in state.log.submissions:
        candidate = submission.answer.candidate
        if candidate.candidate_id in state.standings:
            where = f"submission {candidate.sequence} of {candidate.agent_id} at the end"
            yield from _compare(
                where, submission.standing, state.standings[candidate.candidate_id], ("verdict", "reason")
            )


def _compare(where: str, recorded: object, again: object, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        then, now = _comparable(getattr(recorded, name)), _comparable(getattr(again, name))
        if then != now:
            yield f"{where}: {name} was {_line(then)}, is {_line(now)}"


def _comparable(value: object) -> object:
    """Returns a value with its texts in today's wording."""
    if isinstance(value, str):
        return current_wording(value)
    if isinstance(value, Mapping):
        return {key: _comparable(text) for key, text in value.items()}
    return value


def _line(value: object) -> str:
    return " ".join(str(value).split()) or "nothing"
