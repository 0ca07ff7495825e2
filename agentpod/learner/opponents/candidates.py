"""Turns published policies into opponents."""

from collections.abc import Iterable

import structlog

from agentpod.learner.evaluation_job import PublishedPolicy, opponent_of
from agentpod.session.opponents import OpponentPolicy
from podrace.errors import PodraceError
from podrace.specification.declared_algorithms import NETWORK_CLASS, names_code
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from simulators import Space

_log = structlog.get_logger(__name__)


def opponents_of(
    published: Iterable[PublishedPolicy], spaces: tuple[Space, Space], spec: TournamentSpec
) -> list[OpponentPolicy]:
    """Returns the policies that can play in an environment; others are left out and named.

    Args:
        published: Policies of candidates.
        spaces: Observation space and action space of the environment.
        spec: Specification of the tournament, which names the code that may be imported.
    """
    found = []
    for one in published:
        problem, network = "", one.network
        if network.recurrent_size:
            problem = "its policy is recurrent"
        elif not names_code(spec, NETWORK_CLASS, network.network_class):
            problem = "its network is a class that the specification does not name"
        try:
            if not problem:
                found.append(opponent_of(one, spaces))
        except PodraceError as error:
            problem = error.message
        if problem:
            _log.warning("an opponent is left out", source=one.manifest.agent_id, reason=problem)
    return found
