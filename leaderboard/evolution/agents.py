"""Makes agents from the answer of a strategy or a generator plugin. Pure.

A synchronous tournament generates in rounds of `pool.maximum_pods` agents. The generator of an agent then sees the
board of the submissions of all earlier rounds, in canonical order. Agents of its own round with lower numbers count as
unfinished. The population therefore depends on the specification and its seed only, and not on which pod was faster.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from leaderboard.evolution import STRATEGIES, fresh
from leaderboard.evolution.allocation import already_eliminated, eliminated
from leaderboard.evolution.ancestor import Ancestor, starts_from
from leaderboard.evolution.crossover import choose_mate, describe_mate
from leaderboard.evolution.fresh import Turn
from leaderboard.evolution.history import NOTHING, History
from leaderboard.evolution.mutation import describe_changes, settled_child
from leaderboard.evolution.proposals import Proposal, adopted
from leaderboard.evolution.space import plain
from leaderboard.evolution.strategy import Answer, Child, Continue, Fresh, NoWork, Situation
from leaderboard.evolution.trials import BEGIN, ClockReading, Trials, synchronous_log
from leaderboard.ranking.board import Board, canonical, fold
from leaderboard.seeding import agent_seed, stream
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_CLONE,
    ORIGIN_CONTINUATION,
    ORIGIN_FRESH,
    ORIGIN_MUTATION,
    Agent,
    Candidate,
)
from podrace.printable import one_line
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def agent_id_of(tournament_id: str, number: int) -> str:
    """Returns the id of an agent."""
    return f"{tournament_id}-a{number}"


def needs_history(spec: TournamentSpec) -> bool:
    """Returns whether the generator of a tournament uses the history, which takes time to read."""
    # An algorithm may be eliminated because of its history, if there are others.
    return STRATEGIES[spec.evolution.strategy].reads_history or len(spec.algorithms) > 1


def trials_of(spec: TournamentSpec) -> Trials | None:
    """Returns the fold of the strategy without any event; None if the strategy has no fold."""
    fold = STRATEGIES[spec.evolution.strategy].fold
    return None if fold is None else fold(spec)


def visible_trials(
    spec: TournamentSpec,
    number: int,
    agents: Iterable[Agent],
    submissions: Iterable[Candidate],
    failed: Collection[str],
) -> Trials | None:
    """Returns the log that the generator of an agent of a synchronous tournament sees, folded; None as `trials_of`.

    Args:
        spec: Resolved specification.
        number: Position of the agent.
        agents: Agents of the tournament.
        submissions: Its submissions.
        failed: Ids of agents that have failed.
    """
    trials = trials_of(spec)
    if trials is not None:
        earlier = [agent for agent in agents if agent.number < number]
        begin, size = round_begin(spec, number), spec.pool.maximum_pods
        synchronous_log(trials, earlier, submissions, failed, begin=begin, round_size=size)
    return trials


def visible_board(spec: TournamentSpec, number: int, candidates: Iterable[Candidate]) -> Board:
    """Returns the board that the generator of an agent sees.

    Args:
        spec: Resolved specification.
        number: Position of the agent.
        candidates: The board; in a synchronous tournament every submission.
    """
    if not spec.synchronous:
        return tuple(candidates)
    begin = round_begin(spec, number)
    earlier = (candidate for candidate in candidates if candidate.agent_number < begin)
    return fold(canonical(earlier), spec.evolution.board_capacity).board


def round_begin(spec: TournamentSpec, number: int) -> int:
    """Returns the lowest number in the round of an agent of a synchronous tournament."""
    return number - number % spec.pool.maximum_pods


def make(
    tournament_id: str,
    spec: TournamentSpec,
    number: int,
    board: Board,
    agents: Mapping[str, Agent],
    unfinished_children: Mapping[str, int],
    history: History = NOTHING,
    proposal: Proposal | None = None,
    ancestor: Ancestor | None = None,
    trials: Trials | None = None,
    clock: ClockReading = BEGIN,
) -> tuple[Agent, int] | NoWork:
    """Makes an agent without its `create_time`; returns it with its depth, or why there is no work.

    Args:
        tournament_id: The tournament.
        spec: Its resolved specification.
        number: Position of the agent.
        board: The board that the generator sees.
        agents: The agents on the board, by id.
        unfinished_children: Number of their children that were handed out and have not finished, by the parent's id.
        history: The latest agents, for strategies that use them.
        proposal: Result of calling a generator plugin; None if it was not called.
        ancestor: Agent of another tournament from which the first agents start; None if there is none.
        trials: The log so far, for a strategy with a fold.
        clock: How far the tournament is; recorded with the agent.
    """
    left = eliminated(spec, history)
    known = {**history.by_id, **agents}
    situation = Situation(spec, number, board, known, unfinished_children, history, left, trials, clock)
    made = _make(tournament_id, situation, proposal, ancestor)
    if isinstance(made, NoWork):
        return made
    agent, depth = made
    before = already_eliminated(history) if left else {}
    agent.reason += "".join(f"; {name} is eliminated: {left[name]}" for name in sorted(left) if name not in before)
    return agent, depth


def _make(
    tournament_id: str, situation: Situation, proposal: Proposal | None, ancestor: Ancestor | None
) -> tuple[Agent, int] | NoWork:
    spec, number = situation.spec, situation.number
    answer, fault = _decide(situation, proposal)
    if isinstance(answer, NoWork):
        return answer
    start = None
    if isinstance(answer, Fresh) and ancestor is not None:
        start = starts_from(answer, spec, number, answer.algorithm or situation.turn.algorithm, ancestor)
    agent = Agent(
        agent_id=agent_id_of(tournament_id, number),
        tournament_id=tournament_id,
        number=number,
        seed=agent_seed(spec.seed, number),
        reason=start.reason + _not_called(spec, proposal) if start else answer.reason,
        seat=answer.seat,
        left_algorithms=situation.left,
        generator_fault=fault,
        trial=number,
        assignment_environment_steps=answer.environment_steps,
        rung=answer.rung,
        tournament_environment_steps=situation.clock.environment_steps,
        objective_share=situation.clock.share,
    )
    agent.running_duration.FromNanoseconds(round(situation.clock.running_seconds * 1e9))
    if start is not None and ancestor is not None:
        return _as_child(agent, start, ancestor.agent, situation)
    if isinstance(answer, Continue):
        return _as_continuation(agent, answer, situation.agent_of(answer.parent))
    if isinstance(answer, Child):
        child, depth = _as_child(agent, answer, situation.agent_of(answer.parent), situation)
        if proposal is None or fault:
            # A plugin decides about its own children.
            _cross(child, answer, situation)
        return child, depth
    return _as_fresh(agent, answer, situation)


def _cross(child: Agent, answer: Child, situation: Situation) -> None:
    """Offers a child the average with a sibling of its parent, if it is to be crossed and there is one."""
    mate = choose_mate(answer.parent, situation, stream(situation.spec.seed, "crossover", child.number))
    if mate is not None:
        child.mates.append(Checkpoint(agent_id=mate.agent_id, manifest_digest=mate.candidate_id))
        child.reason += f"; {describe_mate(mate)}"


def _not_called(spec: TournamentSpec, proposal: Proposal | None) -> str:
    generator = spec.evolution.generator
    return f"; {generator} was not called" if generator and proposal is None else ""


def _decide(situation: Situation, proposal: Proposal | None) -> tuple[Answer, str]:
    """Returns the plugin's proposal if it is valid, else the answer of the built-in strategy and the reason for it."""
    evolution, problem = situation.spec.evolution, ""
    if proposal is not None and proposal.answer is not None:
        try:
            proposed = adopted(proposal.answer, situation)
            return replace(proposed, reason=f"{evolution.generator}: {proposed.reason}"), ""
        except InvalidArgument as error:
            # It was valid when it arrived: the board has changed since.
            problem = f"generator {evolution.generator}: its proposal is no longer valid: {one_line(error.message)}"
    elif proposal is not None:
        problem = proposal.failure
    strategy = STRATEGIES[evolution.strategy]
    answer = strategy.propose(situation, stream(situation.spec.seed, "generate", situation.number))
    if problem:
        answer = replace(answer, reason=f"{problem}; built-in strategy {evolution.strategy} instead: {answer.reason}")
    return answer, problem


def _as_child(agent: Agent, answer: Child, parent: Agent, situation: Situation) -> tuple[Agent, int]:
    agent.algorithm = parent.algorithm
    values = settled_child(
        parent.algorithm,
        situation.spec.algorithms[parent.algorithm],
        {name: plain(value) for name, value in parent.hyperparameters.fields.items()},
        answer.hyperparameters,
        stream(situation.spec.seed, "condition", agent.number),
    )
    if changes := describe_changes(answer.hyperparameters, values):
        agent.reason += f"; by conditions {changes}"
    agent.hyperparameters.update(values)
    agent.origin = ORIGIN_CLONE if agent.hyperparameters == parent.hyperparameters else ORIGIN_MUTATION
    agent.parent_agent_ids.append(parent.agent_id)
    agent.starting_checkpoint.CopyFrom(Checkpoint(agent_id=parent.agent_id, manifest_digest=answer.parent.candidate_id))
    return agent, answer.parent.depth + 1


def _as_continuation(agent: Agent, answer: Continue, parent: Agent) -> tuple[Agent, int]:
    agent.algorithm, agent.seed, agent.origin = parent.algorithm, parent.seed, ORIGIN_CONTINUATION
    agent.hyperparameters.CopyFrom(parent.hyperparameters)
    agent.trial = trial_of(parent)
    agent.parent_agent_ids.append(parent.agent_id)
    agent.starting_checkpoint.CopyFrom(Checkpoint(agent_id=parent.agent_id, manifest_digest=answer.parent.candidate_id))
    return agent, answer.parent.depth


def trial_of(agent: Agent) -> int:
    """Returns the number of the first agent of the trial of an agent."""
    return agent.trial if agent.HasField("trial") else agent.number


def _turn_of(answer: Fresh, situation: Situation) -> Turn:
    turn = situation.turn
    name = answer.algorithm or turn.algorithm
    if answer.values_as_specified:
        return Turn(name, first=True)
    if situation.trials is not None:
        # Many numbers are not fresh, so those that are have to be counted.
        ordinal = situation.trials.started(name)
        return Turn(name, first=ordinal == 0, ordinal=ordinal)
    return turn if name == turn.algorithm else Turn(name, first=False)


def _as_fresh(agent: Agent, answer: Fresh, situation: Situation) -> tuple[Agent, int]:
    turn = _turn_of(answer, situation)
    _, drawn = fresh.draw(situation.spec, agent.number, turn)
    _, values = fresh.draw(situation.spec, agent.number, turn, answer.hyperparameters)
    agent.algorithm = turn.algorithm
    agent.hyperparameters.update(values)
    agent.origin = ORIGIN_FRESH
    changes = describe_changes(drawn, values)
    agent.reason = f"fresh, {agent.reason}; {fresh.source_of_values(situation.spec, turn)}" + (
        f" except {changes}" if changes else ""
    )
    return agent, 0
