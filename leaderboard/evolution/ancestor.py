"""Starts a tournament from an agent of another tournament (`evolution.ancestor_agent_id`). Pure.

The first agents are those that are fresh because there are no parents yet: `initial_agents`, `population_size` for
strategies with a population, or the founders for a strategy that has founders. Those with the ancestor's algorithm
start from its checkpoint files, the first with its hyperparameters and the others with mutated ones. If there are two
or more, the last one stays fresh, as do agents of other algorithms, so that the tournament can do better than an
ancestor that does not fit the new data.

A generator plugin is not called for the agents that start from the ancestor, because the specification determines them.
It is called for all others; agents that it proposes as fresh do not start from the ancestor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.space import Space, Value, declared_values, is_structural, movable_spaces, plain, spaces_of
from leaderboard.evolution.strategy import Child, Fresh
from leaderboard.ranking.board import Board, canonical, fold, shown
from leaderboard.seeding import stream
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.specification import ancestor as ancestry
from podrace.specification import evolution_settings
from podrace.specification.ancestor import KEY
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class Ancestor:
    """An agent of another tournament, and one of its candidates."""

    agent: Agent
    candidate: Candidate
    """The candidate whose checkpoint files the first agents start from."""


def best_of(agent_id: str, spec: TournamentSpec, submissions: Sequence[Candidate]) -> Candidate | None:
    """Returns the best candidate of an agent whose files are kept: the one on the board, else its last; None if none.

    With an updater plugin it is always the last, because the board does not follow from the scores alone.

    Args:
        agent_id: The agent.
        spec: Specification of its tournament.
        submissions: Submissions of its tournament by arrival, up to some time.
    """
    in_order = canonical(submissions) if spec.synchronous else submissions
    board: Board = () if spec.evolution.updater else fold(in_order, spec.evolution.board_capacity).board
    on_board = next((one for one in board if one.agent_id == agent_id), None)
    own = [one for one in submissions if one.agent_id == agent_id]
    return on_board or next(reversed(own), None)


def refusal(spec: TournamentSpec, ancestor: Agent, ancestor_spec: TournamentSpec) -> str:
    """Returns why no agent of a tournament could start from an agent's checkpoint files; empty if one could."""
    where = f"{KEY} = {ancestor.agent_id!r}"
    if problem := ancestry.mismatch(spec, ancestor_spec):
        return problem
    algorithm = spec.algorithms.get(ancestor.algorithm)
    if algorithm is None or not algorithm.ratio > 0:
        used = ", ".join(name for name, one in sorted(spec.algorithms.items()) if one.ratio > 0)
        return f"{where}: is an agent of {ancestor.algorithm}, and the algorithms here are {used}"
    spaces = spaces_of(ancestor.algorithm, algorithm)
    for name, stated in declared_values(algorithm).items():
        if not is_structural(ancestor.algorithm, algorithm, name) or name not in ancestor.hyperparameters.fields:
            continue
        inherited = plain(ancestor.hyperparameters.fields[name])
        if inherited != stated and not _lies_in(spaces.get(name), inherited):
            return (
                f"{where}: has {name} = {inherited!r}, and algorithms.{ancestor.algorithm}.hyperparameters.{name} ="
                f" {stated!r}: its networks would not fit"
            )
    return ""


def starts_from(answer: Fresh, spec: TournamentSpec, number: int, algorithm: str, ancestor: Ancestor) -> Child | None:
    """Returns the child of the ancestor that replaces a fresh agent; None if the agent stays fresh.

    Args:
        answer: Answer of the strategy or the plugin.
        spec: Resolved specification.
        number: Number of the agent.
        algorithm: Algorithm of the agent.
        ancestor: An ancestor for which `refusal` is empty.
    """
    if algorithm != ancestor.agent.algorithm or number not in seeded_numbers(spec, algorithm) or answer.hyperparameters:
        return None
    inherited = inherited_values(spec, ancestor.agent)
    values = inherited
    if number != seeded_numbers(spec, algorithm)[0]:
        spaces = movable_spaces(algorithm, spec.algorithms[algorithm])
        values = mutate(inherited, spaces, spec.evolution, stream(spec.seed, "ancestor", number))
    before = {name: plain(value) for name, value in ancestor.agent.hyperparameters.fields.items()}
    changes = describe_changes({**values, **before}, values) or "hyperparameters unchanged"
    named = f"{ancestor.agent.agent_id} ({shown(ancestor.candidate)} there)"
    return Child(ancestor.candidate, values, f"starts from {named} of another tournament; {changes}", answer.seat)


def first_agents(spec: TournamentSpec) -> int:
    """Returns how many agents are fresh at the beginning of a tournament; a rule for every strategy."""
    settings = evolution_settings.SETTINGS[spec.evolution.strategy]
    if "founder_share" in settings:
        return sum(algorithm.ratio > 0 for algorithm in spec.algorithms.values())
    return spec.evolution.population_size if "population_size" in settings else spec.evolution.initial_agents


def seeded_numbers(spec: TournamentSpec, algorithm: str) -> list[int]:
    """Returns the numbers of the agents of an algorithm that start from the ancestor: all first ones except the
    last.
    """
    numbers = [number for number in range(first_agents(spec)) if turn_of(spec, number).algorithm == algorithm]
    return numbers[:-1] or numbers


def inherited_values(spec: TournamentSpec, ancestor: Agent) -> dict[str, Value]:
    """Returns every hyperparameter of an unmutated child.

    Structural ones are the ancestor's. Searched ones are the ancestor's if they lie in the searched space. All others
    are those of the specification.
    """
    algorithm = spec.algorithms[ancestor.algorithm]
    spaces, values = spaces_of(ancestor.algorithm, algorithm), declared_values(algorithm)
    for name in values:
        if name in ancestor.hyperparameters.fields:
            inherited = plain(ancestor.hyperparameters.fields[name])
            if is_structural(ancestor.algorithm, algorithm, name) or _lies_in(spaces.get(name), inherited):
                values[name] = inherited
    return values


def _lies_in(space: Space | None, value: Value) -> bool:
    return space is not None and space.contains(value)
