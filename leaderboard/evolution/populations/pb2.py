"""Implements the strategy `pb2`: as `truncation`, but bandits choose the new hyperparameters.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", NeurIPS 2020, arXiv 2002.02518, algorithm 1: agents in the bottom quarter copy one of the top quarter, and
their hyperparameters maximize an upper confidence bound of a time-varying Gaussian process (gaussian_process.py). The
process is fitted to all agents that have ended: their hyperparameters, the time at which they began (experience, in
assignments), and the score they gained for each environment step. Positions are normalized to the searched ranges, on
the scale of each range.

Hyperparameters with choices are chosen as in PB2-Mix: Parker-Holder, Nguyen, Desai and Roberts, "Tuning Mixed Input
Hyperparameters on the Fly for Efficient Population Based AutoRL", NeurIPS 2021, arXiv 2106.15883, section 4. A
time-varying bandit for each (category_bandit.py, algorithm 2) draws its new value. The Gaussian process, whose kernel
then covers choices as well, chooses the numbers that go with them. What differs from the paper:
    - Agents do not wait for each other. A round of a bandit consists of the agents that have ended among
      `population_size` consecutive ones. The number of plays in a round is that of the seats of the algorithm.
    - The number of rounds is that of the history, which has the latest agents only: the length of a tournament is not
      known. Agents that keep their values count as plays, as in the authors' code.
    - A reward is the gain for each environment step in standard deviations, clipped at 2 and mapped to 0 to 1. With the
      smallest and the largest gain at the ends, one agent that unlearned everything would make all others equal.
    - An agent in which the condition of a hyperparameter is not met is no play for its bandit.

Structural hyperparameters are the parent's. Until a few agents have ended, numbers change as in `truncation`. The bound
is maximized over points drawn at random, so the result is one of a list that the seed determines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from leaderboard.evolution.history import window_size
from leaderboard.evolution.populations import truncation
from leaderboard.evolution.populations.category_bandit import Bandit, Play, draw_category
from leaderboard.evolution.populations.gaussian_process import LARGEST_VALUE, Point, most_promising, standardized
from leaderboard.evolution.populations.population import propose_for_seat
from leaderboard.evolution.space import Choices, Range, Value, movable_spaces, plain
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.learning_speed import gains_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.specification.conditions import is_active

LEAST_OBSERVATIONS = 4
MOST_OBSERVATIONS = 100
"""Only the latest are used: older ones hardly count, and the time of a fit grows with the cube of their number."""
OFFERED = 500
"""Random points over which the bound is maximized."""


@dataclass(frozen=True)
class Observed:
    """The agents of an algorithm that have ended, and those that have not."""

    ended: Sequence[Agent]
    """By number; the gain of each is known."""
    speeds: Sequence[float]
    """Score that each of them gained per environment step."""
    starts: Sequence[float]
    """Experience at which each of them began, in assignments."""
    training: Sequence[Agent]
    """By number."""
    training_starts: Sequence[float]
    """Experience at which each of these began, in assignments."""


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Chooses the hyperparameters that are not structural."""
    algorithm = parent.algorithm
    searched = movable_spaces(algorithm, situation.spec.algorithms[algorithm])
    ranges = {name: space for name, space in searched.items() if isinstance(space, Range)}
    choices = {name: space for name, space in searched.items() if isinstance(space, Choices)}
    observed = observe(situation, algorithm)
    values = situation.values_of(parent)
    if ranges and len(observed.ended) < LEAST_OBSERVATIONS:
        values = truncation.explore(situation, parent, own_values, random)
    for name, space in choices.items():
        values[name] = space.values[draw_category(random, probabilities(situation, observed, algorithm, name, space))]
    if not ranges or len(observed.ended) < LEAST_OBSERVATIONS:
        return values
    return values | _numbers(situation, parent, observed, ranges, choices, values, random)


def observe(situation: Situation, algorithm: str) -> Observed:
    """Returns what is known of the agents of an algorithm."""
    history = situation.history
    gains = gains_of(history.agents, history.submissions)
    agents = [agent for agent in history.agents if agent.algorithm == algorithm and agent.number < situation.number]
    ended = [one for one in agents if history.has_ended(one) and one.agent_id in gains]
    training = [agent for agent in agents if not history.has_ended(agent)]
    begins = {one.candidate_id: one.environment_steps for one in history.submissions}
    return Observed(
        ended,
        [gains[agent.agent_id].speed for agent in ended],
        [_time(situation, gains[agent.agent_id].start_steps) for agent in ended],
        training,
        [_time(situation, begins.get(agent.starting_checkpoint.manifest_digest, 0)) for agent in training],
    )


def probabilities(situation: Situation, observed: Observed, algorithm: str, name: str, space: Choices) -> list[float]:
    """Returns the probability with which a child gets each choice of a hyperparameter."""
    size = situation.spec.evolution.population_size
    spec = situation.spec.algorithms[algorithm].hyperparameters[name]
    rounds: dict[int, list[Play]] = {}
    for agent, gained in zip(observed.ended, standardized(observed.speeds), strict=True):
        values = {key: plain(agent.hyperparameters.fields[key]) for key in (name, *spec.when)}
        if values[name] in space.values and is_active(spec, values):
            reward = (gained + LARGEST_VALUE) / (2 * LARGEST_VALUE)
            rounds.setdefault(agent.number // size, []).append(Play(space.values.index(values[name]), reward))
    seats = {agent.seat for agent in (*observed.ended, *observed.training)}
    bandit = Bandit(len(space.values), max(1, min(size, len(seats))), -(-window_size(situation.spec) // size))
    return bandit.probabilities([rounds[number] for number in sorted(rounds)])


def points_of(
    agents: Sequence[Agent], times: Sequence[float], ranges: Mapping[str, Range], choices: Mapping[str, Choices]
) -> list[Point]:
    """Returns what agents were trained with, and when."""
    return [
        Point(
            tuple(_position(space, plain(agent.hyperparameters.fields[name])) for name, space in ranges.items()),
            time,
            tuple(index_of(space, plain(agent.hyperparameters.fields[name])) for name, space in choices.items()),
        )
        for agent, time in zip(agents, times, strict=True)
    ]


def index_of(space: Choices, value: Value) -> int:
    """Returns the index of a choice; -1 if the value is not among the choices."""
    return space.values.index(value) if value in space.values else -1


def _numbers(
    situation: Situation,
    parent: Candidate,
    observed: Observed,
    ranges: Mapping[str, Range],
    choices: Mapping[str, Choices],
    values: Mapping[str, Value],
    random: Random,
) -> dict[str, Value]:
    """Returns the numbers that maximize the bound, given the choices."""
    latest = slice(-MOST_OBSERVATIONS, None)
    tried = points_of(observed.ended[latest], observed.starts[latest], ranges, choices)
    pending = points_of(observed.training, observed.training_starts, ranges, choices)
    now = _time(situation, parent.environment_steps)
    chosen = tuple(index_of(space, values[name]) for name, space in choices.items())
    offered = [Point(tuple(random.random() for _ in ranges), now, chosen) for _ in range(OFFERED)]
    best = offered[most_promising(offered, tried, observed.speeds[latest], pending)]
    return {name: space.at(position) for (name, space), position in zip(ranges.items(), best.position, strict=True)}


def _position(space: Range, value: Value) -> float:
    return space.position(value) if isinstance(value, float) else 0.0


def _time(situation: Situation, environment_steps: int) -> float:
    """Returns experience in assignments."""
    return environment_steps / max(1, situation.spec.assignment.environment_steps)


propose = partial(propose_for_seat, select=truncation.select, explore=explore)
"""The strategy."""
