"""Collects the hyperparameters of a champion and how they changed along its line of descent.

members = await read_champion(client, tournament)     # one, or the members of an ensemble, the best first
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.cli.terminal import formats
from podrace.cli.views import family
from podrace.client import Client
from podrace.client.champion import members_of_champion
from podrace.errors import NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import Tournament


@dataclass(frozen=True)
class Stage:
    """A part of a line of descent in which all hyperparameters kept their values."""

    agent_ids: tuple[str, ...]
    """Agents of this part: the first had these values first, and the others continued or repeated them."""
    begin_steps: int
    """Environment steps of the policy when it got these values."""
    end_steps: int
    """Environment steps of the policy when it got others, or at the checkpoint of the champion."""
    algorithm: str
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True)
class ChampionMember:
    """A policy that is the champion, or a member of an ensemble that is."""

    agent_id: str
    candidate_id: str
    stages: tuple[Stage, ...]
    """From the first ancestor to the agent; at least one."""

    @property
    def algorithm(self) -> str:
        """The algorithm of the agent."""
        return self.stages[-1].algorithm

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """The values of the agent."""
        return self.stages[-1].hyperparameters

    @property
    def environment_steps(self) -> int:
        """Environment steps that the policy was trained on, including those of the ancestors."""
        return self.stages[-1].end_steps


async def read_champion(client: Client, tournament: Tournament) -> list[ChampionMember]:
    """Returns the champion of a tournament with its line of descent: one member, or those of an ensemble, best first.

    Raises:
        NotFound: The tournament has no candidate yet.
    """
    checkpoints = members_of_champion(tournament)
    if not checkpoints:
        raise NotFound(f"tournament {tournament.tournament_id} has no candidate yet")
    submissions = await client.list_submissions(tournament)
    found = []
    for checkpoint in checkpoints:
        kin = await client.get_lineage(tournament, checkpoint.agent_id)
        known = [*await submitted_elsewhere(client, tournament, kin), *submissions]
        found.append(champion_member(checkpoint, kin, known))
    return found


async def submitted_elsewhere(client: Client, tournament: Tournament, agents: Sequence[Agent]) -> list[Candidate]:
    """Returns the submissions of those agents that belong to other tournaments of the same leaderboard."""
    elsewhere = {agent.agent_id: agent.tournament_id for agent in agents}
    found: list[Candidate] = []
    for name in dict.fromkeys(elsewhere.values()):
        if name != tournament.tournament_id:
            other = Tournament(tournament_id=name, leaderboard_address=tournament.leaderboard_address)
            everything = await client.list_submissions(other)
            found += [entry for entry in everything if entry.agent_id in elsewhere]
    return found


def champion_member(checkpoint: Checkpoint, kin: Sequence[Agent], submissions: Sequence[Candidate]) -> ChampionMember:
    """Returns the stages of the line of descent that ends in a checkpoint. Pure.

    Args:
        checkpoint: Checkpoint of the champion or of a member.
        kin: Its agent and the ancestors, nearest first.
        submissions: Their submissions, and any others.

    Raises:
        NotFound: The agent is not among `kin`.
    """
    agents = {agent.agent_id: agent for agent in kin}
    if checkpoint.agent_id not in agents:
        raise NotFound(f"the leaderboard has no agent {checkpoint.agent_id}")
    related = [entry for entry in submissions if entry.agent_id in agents]
    members = family.make_members(reversed(kin), related)
    line = [members[name] for name in family.line_of(checkpoint.agent_id, members)]
    ends = [member.start_steps for member in line[1:]]
    steps = {entry.candidate_id: entry.environment_steps for entry in related}
    ends.append(max(line[-1].start_steps, steps.get(checkpoint.manifest_digest, 0)))
    stages: list[Stage] = []
    for member, end in zip(line, ends, strict=True):
        last = stages[-1] if stages else None
        if last and (last.algorithm, last.hyperparameters) == (member.algorithm, member.hyperparameters):
            names, begin = (*last.agent_ids, member.agent_id), last.begin_steps
            stages.pop()
        else:
            names, begin = (member.agent_id,), member.start_steps
        stages.append(Stage(names, begin, end, member.algorithm, member.hyperparameters))
    return ChampionMember(checkpoint.agent_id, checkpoint.manifest_digest, tuple(stages))


def changing(member: ChampionMember) -> list[str]:
    """Returns the names of the hyperparameters that had more than one value along the line of descent."""
    names = dict.fromkeys(name for stage in member.stages for name in stage.hyperparameters)
    first = member.stages[0].hyperparameters
    return [
        name for name in names if any(stage.hyperparameters.get(name) != first.get(name) for stage in member.stages)
    ]


def changing_values(member: ChampionMember) -> list[dict[str, Any]]:
    """Returns the values of the hyperparameters that changed, for each stage."""
    names = changing(member)
    return [
        {name: stage.hyperparameters[name] for name in names if name in stage.hyperparameters}
        for stage in member.stages
    ]


def short_names(stage: Stage, tournament_id: str) -> list[str]:
    """Returns the short names of the agents of a stage: a3, a7."""
    return [formats.short(name, tournament_id) for name in stage.agent_ids]
