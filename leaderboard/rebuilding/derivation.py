"""Derives records of tournaments, agents and candidates from the manifests in a checkpoint store. Pure.

A manifest states its tournament with the whole specification, its agent with algorithm, hyperparameters, seed and
starting checkpoint, and the score of its policy. It does not state why an agent was generated, its seat or rung, which
agents failed, or in which order submissions arrived; the order of publication replaces the latter.

Rules:
- A manifest counts if it has a specification and belongs to an agent of its tournament. Snapshots do not count: their
  numbers are lost.
- A tournament has the specification of its first agent's oldest manifest, because pool and objective may have been
  changed later.
- An agent starts from the agent whose checkpoint it names. It continues that agent if it has the same seed.
- Each scored checkpoint was submitted, or would have been next, so it is judged again, in the order of publication.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest
from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_CLONE,
    ORIGIN_CONTINUATION,
    ORIGIN_FRESH,
    ORIGIN_MUTATION,
    Agent,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

REASON = "rebuilt from its checkpoints; why it was generated is not known"
AGENT = re.compile(r"(.+)-a(\d{1,9})")


@dataclass(frozen=True)
class DerivedAgent:
    """An agent that has published a checkpoint."""

    agent: Agent
    depth: int
    """Generations from the first fresh ancestor, as far as it is known."""


@dataclass(frozen=True)
class DerivedTournament:
    """What is known of a tournament."""

    tournament_id: str
    spec: TournamentSpec
    agents: Sequence[DerivedAgent]
    """By number."""
    candidates: Sequence[str]
    """Manifests of scored checkpoints, in the order of publication."""
    lost: Sequence[str] = field(default_factory=tuple)
    """What is lost for certain, in short texts."""


def derived_tournaments(manifests: Mapping[str, Manifest]) -> list[DerivedTournament]:
    """Returns the tournaments that the manifests belong to, by the publication of their first checkpoint.

    Args:
        manifests: All manifests of a store, by digest.
    """
    own: dict[str, dict[str, Manifest]] = {}
    for digest in sorted(manifests, key=lambda one: _order(one, manifests)):
        manifest = manifests[digest]
        match = AGENT.fullmatch(manifest.agent_id)
        if match and match[1] == manifest.tournament_id and manifest.HasField("spec"):
            own.setdefault(manifest.tournament_id, {})[digest] = manifest
    snapshots = {one.tournament_id for one in manifests.values() if one.snapshot}
    return [_tournament(name, found, manifests, snapshots) for name, found in own.items()]


def _order(digest: str, manifests: Mapping[str, Manifest]) -> tuple[int, str]:
    return manifests[digest].publish_time.ToNanoseconds(), digest


def _tournament(
    name: str, own: Mapping[str, Manifest], every: Mapping[str, Manifest], snapshots: frozenset[str] | set[str]
) -> DerivedTournament:
    firsts: dict[int, Manifest] = {}
    for manifest in own.values():
        firsts.setdefault(_number(manifest), manifest)
    spec = spec_of(firsts[min(firsts)])
    agents: dict[str, DerivedAgent] = {}
    for number in sorted(firsts):
        derived = _agent(number, firsts[number], every, agents)
        agents[derived.agent.agent_id] = derived
    candidates = [digest for digest, one in own.items() if one.evaluation.episodes]
    return DerivedTournament(name, spec, list(agents.values()), candidates, _lost(firsts, name in snapshots))


def _number(manifest: Manifest) -> int:
    return int(manifest.agent_id.rpartition("-a")[2])


def spec_of(manifest: Manifest) -> TournamentSpec:
    """Returns the specification in a manifest; an empty one if it cannot be read."""
    fields = json_format.MessageToDict(manifest.spec)
    try:
        return json_format.ParseDict(fields, TournamentSpec(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return TournamentSpec()


def _agent(
    number: int, first: Manifest, every: Mapping[str, Manifest], known: Mapping[str, DerivedAgent]
) -> DerivedAgent:
    agent = Agent(
        agent_id=first.agent_id,
        tournament_id=first.tournament_id,
        number=number,
        algorithm=first.algorithm,
        origin=ORIGIN_FRESH,
        seed=first.seed,
        reason=REASON,
        create_time=first.publish_time,
        trial=number,
    )
    agent.hyperparameters.CopyFrom(first.hyperparameters)
    start = every.get(first.starting_manifest_digest)
    if start is None:
        return DerivedAgent(agent, 0)
    agent.parent_agent_ids.append(start.agent_id)
    agent.starting_checkpoint.CopyFrom(
        Checkpoint(agent_id=start.agent_id, manifest_digest=first.starting_manifest_digest)
    )
    same = first.hyperparameters == start.hyperparameters
    parent = known.get(start.agent_id)
    depth = parent.depth if parent else 0
    if first.seed == start.seed and same:
        agent.origin, agent.trial = ORIGIN_CONTINUATION, parent.agent.trial if parent else number
        return DerivedAgent(agent, depth)
    agent.origin = ORIGIN_CLONE if same else ORIGIN_MUTATION
    return DerivedAgent(agent, depth + 1)


def _lost(firsts: Mapping[int, Manifest], snapshots: bool) -> list[str]:
    without = max(firsts) + 1 - len(firsts)
    return [
        *([f"{without} agents without a checkpoint"] if without else []),
        *(["snapshots"] if snapshots else []),
        "failures, plugin opinions, reasons, seats and rungs of agents",
    ]
