"""Implements the strategy `pb2`: as `truncation`, but a Gaussian-process bandit chooses the new hyperparameters.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", NeurIPS 2020, arXiv 2002.02518, algorithm 1: agents in the bottom quarter copy one of the top quarter, and
their hyperparameters maximize an upper confidence bound of a time-varying Gaussian process (gaussian_process.py). The
process is fitted to all agents that have ended: their hyperparameters, the time at which they began (experience, in
assignments), and the score they gained for each environment step. Positions are normalized to the searched ranges, on
the scale of each range.

The bandit chooses numeric hyperparameters, except structural ones, which are the parent's. A choice is drawn again with
`resample_probability`, and otherwise kept. Until a few agents have ended, hyperparameters change as in `truncation`.

The bound is maximized over points drawn at random, so the result is one of a list that the seed determines.
"""

from collections.abc import Mapping
from functools import partial
from random import Random

from leaderboard.evolution.populations import truncation
from leaderboard.evolution.populations.gaussian_process import Point, most_promising
from leaderboard.evolution.populations.population import propose_for_seat
from leaderboard.evolution.space import Range, Value, is_structural, plain, spaces_of
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.learning_speed import gains_of
from leaderboard.seeding import happens
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate

LEAST_OBSERVATIONS = 4
MOST_OBSERVATIONS = 100
"""Only the latest are used: older ones hardly count, and the time of a fit grows with the cube of their number."""
OFFERED = 500
"""Random points over which the bound is maximized."""


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Chooses the numeric hyperparameters and draws some of the choices."""
    algorithm = parent.algorithm
    spaces = spaces_of(algorithm, situation.spec.algorithms[algorithm])
    searched = {name: space for name, space in spaces.items() if not is_structural(algorithm, name)}
    ranges = {name: space for name, space in searched.items() if isinstance(space, Range)}
    tried, gained, pending = observations(situation, algorithm, ranges)
    if not ranges or len(tried) < LEAST_OBSERVATIONS:
        return truncation.explore(situation, parent, own_values, random)
    values = situation.values_of(parent)
    for name in sorted(searched.keys() - ranges.keys()):
        if happens(random, situation.spec.evolution.resample_probability):
            values[name] = searched[name].draw(random)
    now = _time(situation, parent.environment_steps)
    offered = [Point(tuple(random.random() for _ in ranges), now) for _ in range(OFFERED)]
    chosen = offered[most_promising(offered, tried, gained, pending)]
    positions = zip(ranges.items(), chosen.position, strict=True)
    return values | {name: space.at(position) for (name, space), position in positions}


def observations(
    situation: Situation, algorithm: str, ranges: Mapping[str, Range]
) -> tuple[list[Point], list[float], list[Point]]:
    """Returns the tried points, the score that each gained per environment step, and the points being tried.

    Args:
        situation: Input of the strategy.
        algorithm: Algorithm of the agents.
        ranges: The hyperparameters that the bandit chooses.
    """
    history = situation.history
    gains = gains_of(history.agents, history.submissions)
    agents = [agent for agent in history.agents if agent.algorithm == algorithm and agent.number < situation.number]
    ended = [one for one in agents if history.has_ended(one) and one.agent_id in gains][-MOST_OBSERVATIONS:]
    tried = [Point(_position(agent, ranges), _time(situation, gains[agent.agent_id].start_steps)) for agent in ended]
    starts = {one.candidate_id: one.environment_steps for one in history.submissions}
    pending = [
        Point(_position(agent, ranges), _time(situation, starts.get(agent.starting_checkpoint.manifest_digest, 0)))
        for agent in agents
        if not history.has_ended(agent)
    ]
    return tried, [gains[agent.agent_id].speed for agent in ended], pending


def _position(agent: Agent, ranges: Mapping[str, Range]) -> tuple[float, ...]:
    return tuple(_of(ranges[name], plain(agent.hyperparameters.fields[name])) for name in ranges)


def _of(space: Range, value: Value) -> float:
    return space.position(value) if isinstance(value, float) else 0.0


def _time(situation: Situation, environment_steps: int) -> float:
    """Returns experience in assignments."""
    return environment_steps / max(1, situation.spec.assignment.environment_steps)


propose = partial(propose_for_seat, select=truncation.select, explore=explore)
"""The strategy."""
