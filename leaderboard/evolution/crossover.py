"""Chooses a sibling of a child's parent, so that the child may start from the average of both. Pure.

Averaging helps only agents whose parameters have not moved far apart: agents that were trained from the same checkpoint
stay in one basin of the loss more often than not (Wortsman et al. 2022, "Model soups", arXiv 2203.05482), and unrelated
ones do not. So only siblings are averaged, and the pod scores the average before the child uses it.

Two agents are siblings if
- they belong to different trials, whose first agents started from the same checkpoint;
- they have the same algorithm, and the same value of every structural hyperparameter, which shape the networks.
"""

from random import Random

from leaderboard.evolution.space import is_structural
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import Board, named, rank_key
from leaderboard.seeding import happens
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate


def choose_mate(parent: Candidate, situation: Situation, random: Random) -> Candidate | None:
    """Returns the best sibling of a parent that does not rank above it; None if the child is not crossed.

    Args:
        parent: Candidate that the child starts from.
        situation: Input of the generator.
        random: Random stream for the draw.
    """
    if not happens(random, situation.spec.evolution.crossover_probability):
        return None
    return next(iter(siblings(parent, situation)), None)


def siblings(parent: Candidate, situation: Situation) -> Board:
    """Returns the best candidate on the board of each sibling of a parent, by rank, without those that rank above it.

    The parent is then the better of the two, so it is what the child starts from if the average is worse.
    """
    own = situation.agent_of(parent)
    found: dict[int, Candidate] = {}
    for candidate in sorted(situation.possible_parents, key=rank_key):
        agent = situation.agents.get(candidate.agent_id)
        if agent is None or rank_key(candidate) < rank_key(parent):
            continue
        if not why_unrelated(own, agent, situation):
            found.setdefault(_trial_of(agent), candidate)
    return tuple(found.values())


def why_unrelated(one: Agent, other: Agent, situation: Situation) -> str:
    """Returns why two agents are no siblings, in one line; empty if they are."""
    pair = f"{one.agent_id} and {other.agent_id}"
    if _trial_of(one) == _trial_of(other):
        return f"{pair} belong to the same trial"
    first, others_first = first_of_trial(one, situation), first_of_trial(other, situation)
    if first is None or others_first is None:
        return f"{pair}: it is not known what their trials started from"
    start = first.starting_checkpoint.manifest_digest
    if not start or start != others_first.starting_checkpoint.manifest_digest:
        return f"{pair} did not start from the same checkpoint"
    if one.algorithm != other.algorithm:
        return f"{pair} have other algorithms: {one.algorithm} and {other.algorithm}"
    algorithm = situation.spec.algorithms[one.algorithm]
    names = sorted({*one.hyperparameters.fields, *other.hyperparameters.fields})
    for name in names:
        differs = one.hyperparameters.fields.get(name) != other.hyperparameters.fields.get(name)
        if differs and is_structural(one.algorithm, algorithm, name):
            return f"{pair} have other networks or environments: {name} differs"
    return ""


def first_of_trial(agent: Agent, situation: Situation) -> Agent | None:
    """Returns the agent that the trial of an agent began with; None if it is not known any more."""
    number = _trial_of(agent)
    if number == agent.number:
        return agent
    trial = situation.trials.by_number.get(number) if situation.trials else None
    if trial is not None and trial.agents:
        return trial.agents[0]
    known = (one for one in situation.agents.values() if one.number == number)
    return next((one for one in known if one.tournament_id == agent.tournament_id), None)


def describe_mate(mate: Candidate) -> str:
    """Returns what the reason of a child says about its mate."""
    return f"offered the average with its sibling {named(mate)}"


def _trial_of(agent: Agent) -> int:
    return agent.trial if agent.HasField("trial") else agent.number
