"""Reads the hyperparameters of agents from a leaderboard."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.client.champion import members_of_champion
from podrace.client.client import Client
from podrace.errors import PodraceError
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification.files import whole
from podrace.tournament.v1.tournament_pb2 import Tournament

HyperparametersByAgent = Mapping[str, Mapping[str, Any]]
"""Values by name, by agent id. Agents whose values are not known are left out."""


def hyperparameters_of(trained: Agent | Manifest) -> dict[str, Any]:
    """Returns the hyperparameters of an agent or of a checkpoint by name."""
    values: dict[str, Any] = whole(json_format.MessageToDict(trained.hyperparameters))
    return values


def by_agent(agents: Iterable[Agent]) -> HyperparametersByAgent:
    """Returns the hyperparameters of agents."""
    return {agent.agent_id: hyperparameters_of(agent) for agent in agents if agent.hyperparameters.fields}


async def read_hyperparameters(
    client: Client, tournament: Tournament, agent_ids: Iterable[str]
) -> HyperparametersByAgent:
    """Returns the hyperparameters of agents of a leaderboard.

    Makes no call for no agent. Agents that the leaderboard does not know are left out, and so are all if it does not
    answer: the values are only shown next to other results.

    Args:
        client: Client of the mesh.
        tournament: A tournament of that leaderboard.
        agent_ids: Ids of agents; empty ids are ignored.
    """
    names = list(dict.fromkeys(filter(None, agent_ids)))
    found = await asyncio.gather(*(_read_agent(client, tournament, name) for name in names))
    return by_agent(agent for agent in found if agent is not None)


async def _read_agent(client: Client, tournament: Tournament, agent_id: str) -> Agent | None:
    try:
        return await client.get_agent(tournament, agent_id)
    except PodraceError:
        return None


async def read_of_champion(client: Client, tournament: Tournament) -> HyperparametersByAgent:
    """Returns the hyperparameters of the agents that are the champion of a tournament; empty if there is none."""
    return await read_hyperparameters(client, tournament, (one.agent_id for one in members_of_champion(tournament)))
