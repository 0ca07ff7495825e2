"""Owns the strategy `pb2`: as `truncation`, but a Gaussian-process bandit chooses the new hyperparameters.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", NeurIPS 2020, arXiv 2002.02518, algorithm 1: agents in the bottom quarter copy one of the top quarter, and
their hyperparameters maximise an upper confidence bound of a time-varying Gaussian process (gaussian_process.py). What
it learns from: for every agent that has ended, its hyperparameters, when it began (experience, in assignments), and the
score it gained for each environment step. Positions are normalised to the searched ranges, on their own scales.

Numbers are the bandit's, structural ones excepted, which are the parent's. Choices are not: each is drawn anew with
`resample_probability`, else it stays. Until a few agents have ended, hyperparameters change as in `truncation`.

The bound is maximised over points drawn at random, so that the answer is one of a list that the seed decides.
"""

from collections.abc import Mapping
from functools import partial
from random import Random

from leaderboard.evolution import truncation
from leaderboard.evolution.gaussian_process import Point, most_promising
from leaderboard.evolution.population import propose_for_seat
from leaderboard.evolution.randomness import happens
from leaderboard.evolution.space import Range, Value, is_structural, plain, spaces_of
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.learning_speed import gains_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate

LEAST_OBSERVATIONS = 4
MOST_OBSERVATIONS = 100
"""The latest; older ones are as good as forgotten, and the time of a fit grows with their cube."""
OFFERED = 500


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Chooses the numbers, draws some of the choices."""
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
    """What was tried, the score a step that came of each, and what is being tried; agents by number.

    Args:
        situation: What the strategy is shown.
        algorithm: Whose agents.
        ranges: The hyperparameters that are the bandit's.
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
    """Experience in assignments."""
    return environment_steps / max(1, situation.spec.assignment.environment_steps)


propose = partial(propose_for_seat, select=truncation.select, explore=explore)
"""The strategy."""
