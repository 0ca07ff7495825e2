"""Owns how a tournament starts from an agent of another one (`evolution.ancestor_agent_id`). Pure.

The first agents, those that are fresh before there can be parents (`initial_agents`, or `population_size` where there
is a population), go on with the ancestor's training files where they have its algorithm: the first with its
hyperparameters, the others mutated. The last of them stays fresh if there are two or more, and so do those of other
algorithms: an ancestor that the new data has left behind can lose.

A custom generator is not asked about those that go on from the ancestor, because whoever wrote the specification has
said already what they are to be. Of all others it is asked, and where it says fresh, the agent is fresh.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.randomness import stream
from leaderboard.evolution.space import Choices, Range, Space, Value, declared_values, is_structural, plain, spaces_of
from leaderboard.evolution.strategy import Child, Fresh
from leaderboard.ranking.board import Board, canonical, fold, shown
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.specification import ancestor as ancestry
from podrace.specification import evolution_settings
from podrace.specification.ancestor import KEY
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class Ancestor:
    """An agent of another tournament, and what it left."""

    agent: Agent
    candidate: Candidate
    """Whose training files are gone on with."""


def best_of(agent_id: str, spec: TournamentSpec, submissions: Sequence[Candidate]) -> Candidate | None:
    """The best candidate of an agent whose training files are kept: that on the board, else its last; None if none.

    Where a custom updater judges, who is on the board does not follow from the scores, and it is the last.

    Args:
        agent_id: The agent.
        spec: Of its tournament.
        submissions: Of its tournament by arrival, up to some moment.
    """
    in_order = canonical(submissions) if spec.synchronous else submissions
    board: Board = () if spec.evolution.updater else fold(in_order, spec.evolution.board_capacity).board
    on_board = next((one for one in board if one.agent_id == agent_id), None)
    own = [one for one in submissions if one.agent_id == agent_id]
    return on_board or next(reversed(own), None)


def refusal(spec: TournamentSpec, ancestor: Agent, ancestor_spec: TournamentSpec) -> str:
    """Why an agent's training files would fit nobody of a tournament; empty if they would."""
    where = f"{KEY} = {ancestor.agent_id!r}"
    if problem := ancestry.mismatch(spec, ancestor_spec):
        return problem
    algorithm = spec.algorithms.get(ancestor.algorithm)
    if algorithm is None or not algorithm.ratio > 0:
        used = ", ".join(name for name, one in sorted(spec.algorithms.items()) if one.ratio > 0)
        return f"{where}: is an agent of {ancestor.algorithm}, and the algorithms here are {used}"
    spaces = spaces_of(ancestor.algorithm, algorithm)
    for name, stated in declared_values(algorithm).items():
        if not is_structural(ancestor.algorithm, name) or name not in ancestor.hyperparameters.fields:
            continue
        inherited = plain(ancestor.hyperparameters.fields[name])
        if inherited != stated and not _lies_in(spaces.get(name), inherited):
            return (
                f"{where}: has {name} = {inherited!r}, and algorithms.{ancestor.algorithm}.hyperparameters.{name} ="
                f" {stated!r}: its networks would not fit"
            )
    return ""


def starts_from(answer: Fresh, spec: TournamentSpec, number: int, algorithm: str, ancestor: Ancestor) -> Child | None:
    """The child of the ancestor that takes the place of a fresh agent; None if that stays fresh.

    Args:
        answer: What the strategy said.
        spec: Resolved.
        number: Of the agent.
        algorithm: Whose turn it is.
        ancestor: Accepted by `refusal`.
    """
    if algorithm != ancestor.agent.algorithm or number not in seeded_numbers(spec, algorithm) or answer.hyperparameters:
        return None
    inherited = inherited_values(spec, ancestor.agent)
    values = inherited
    if number != seeded_numbers(spec, algorithm)[0]:
        spaces = spaces_of(algorithm, spec.algorithms[algorithm])
        values = mutate(algorithm, inherited, spaces, spec.evolution, stream(spec.seed, "ancestor", number))
    before = {name: plain(value) for name, value in ancestor.agent.hyperparameters.fields.items()}
    changes = describe_changes({**values, **before}, values) or "hyperparameters unchanged"
    named = f"{ancestor.agent.agent_id} ({shown(ancestor.candidate)} there)"
    return Child(ancestor.candidate, values, f"starts from {named} of another tournament; {changes}", answer.seat)


def seeded_numbers(spec: TournamentSpec, algorithm: str) -> list[int]:
    """Numbers of the agents of an algorithm that start from an ancestor of it: all first ones but the last."""
    has_population = "population_size" in evolution_settings.SETTINGS[spec.evolution.strategy]
    first = spec.evolution.population_size if has_population else spec.evolution.initial_agents
    numbers = [number for number in range(first) if turn_of(spec, number).algorithm == algorithm]
    return numbers[:-1] or numbers


def inherited_values(spec: TournamentSpec, ancestor: Agent) -> dict[str, Value]:
    """Every hyperparameter of an unmutated child: structural ones and those that are searched are the ancestor's (as
    long as they lie where they are searched), the others are what the specification states.
    """
    algorithm = spec.algorithms[ancestor.algorithm]
    spaces, values = spaces_of(ancestor.algorithm, algorithm), declared_values(algorithm)
    for name in values:
        if name in ancestor.hyperparameters.fields:
            inherited = plain(ancestor.hyperparameters.fields[name])
            if is_structural(ancestor.algorithm, name) or _lies_in(spaces.get(name), inherited):
                values[name] = inherited
    return values


def _lies_in(space: Space | None, value: Value) -> bool:
    if isinstance(space, Choices):
        return value in space.values
    return isinstance(space, Range) and isinstance(value, float) and space.low <= value <= space.high
