"""Writes the model card of an exported policy: what it does, where it comes from, and how it was checked. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.client.scores import standard_error
from podrace.specification.files import whole
from podrace.tournament.v1.tournament_pb2 import Tournament


@dataclass(frozen=True)
class ExportedMember:
    """A policy of an export."""

    manifest_digest: str
    manifest: Manifest
    ancestors: Sequence[str]
    """Agents that its agent descends from, nearest first."""


def card(
    tournament: Tournament, members: Sequence[ExportedMember], result: Mapping[str, Any], agent: str = ""
) -> dict[str, Any]:
    """Returns the facts of a model card as JSON.

    Args:
        tournament: The tournament.
        members: The exported policy, or the members of an ensemble, the best first.
        result: Files with their digests and comparisons, as agentpod.export prints it.
        agent: Agent of the environment that the policy is of, if agents have separate parameters.
    """
    digests = [member.manifest_digest for member in members]
    environment = tournament.spec.environment
    return {
        "tournament_id": tournament.tournament_id,
        "task": {
            "environment": environment.id,
            "options": whole(json_format.MessageToDict(environment.options)),
            "evaluation_options": whole(json_format.MessageToDict(tournament.spec.evaluation.options)),
            **({"agent": agent} if agent else {}),
        },
        "score_on_fresh_episodes": _fresh_score(tournament, digests),
        "members": [_member(member) for member in members],
        **result,
    }


def _fresh_score(tournament: Tournament, digests: Sequence[str]) -> dict[str, Any] | None:
    """Returns the score of a champion on episodes that were not used for selection; None if it has none."""
    selection = tournament.champion_selection
    champion = [tournament.champion_manifest_digest, *(one.manifest_digest for one in selection.members)]
    if digests != champion or not selection.reported_episodes:
        return None
    return {
        "mean_return": tournament.best_score,
        "standard_error": tournament.best_score_standard_error,
        "episodes": selection.reported_episodes,
    }


def _member(member: ExportedMember) -> dict[str, Any]:
    manifest = member.manifest
    score = manifest.evaluation
    return {
        "agent_id": manifest.agent_id,
        "manifest_digest": member.manifest_digest,
        "policy_digest": next((part.digest for part in manifest.parts if part.name == "policy"), ""),
        "algorithm": manifest.algorithm,
        "environment_steps": manifest.lineage_environment_steps,
        "board_score": {
            "mean_return": score.mean_return,
            "standard_error": standard_error(score),
            "episodes": score.episodes,
        },
        "ancestors": list(member.ancestors),
        "hyperparameters": whole(json_format.MessageToDict(manifest.hyperparameters)),
        "versions": dict(sorted(manifest.versions.items())),
    }


def card_text(facts: Mapping[str, Any]) -> str:
    """Returns a model card as Markdown."""
    fresh = facts["score_on_fresh_episodes"]
    lines = [
        f"# Policy of {facts['tournament_id']}",
        "",
        f"- Task: `{facts['task']['environment']}`, options `{facts['task']['options']}`; evaluated with the options"
        f" `{facts['task']['evaluation_options']}`.",
        *([f"- Agent of the environment: `{facts['task']['agent']}`."] if "agent" in facts["task"] else []),
        f"- Score on fresh episodes: {_score(fresh) if fresh else 'not measured for this selection'}.",
        "",
    ]
    for member in facts["members"]:
        lines += [
            f"## {member['agent_id']}",
            "",
            f"- Algorithm `{member['algorithm']}`; {member['environment_steps']:,} steps, ancestors included.",
            f"- Score on the board: {_score(member['board_score'])}. The best of many scores is too high on average.",
            f"- Ancestors: {', '.join(member['ancestors']) or 'none'}.",
            f"- Manifest `{member['manifest_digest']}`, policy `{member['policy_digest']}`.",
            f"- Trained with {', '.join(f'{name} {version}' for name, version in member['versions'].items())}.",
            "",
            "| Hyperparameter | Value |",
            "|---|---|",
            *(f"| `{name}` | {value} |" for name, value in sorted(member["hyperparameters"].items())),
            "",
        ]
    lines += ["## Files", "", "| File | SHA-256 | Compared with the torch policy |", "|---|---|---|"]
    lines += [f"| `{name}` | `{entry['sha256']}` | {_checks(entry)} |" for name, entry in facts["files"].items()]
    if facts["not_recorded"]:
        lines += ["", f"Not compared on recorded observations: {facts['not_recorded']}"]
    return "\n".join(lines) + "\n"


def _score(score: Mapping[str, Any]) -> str:
    if score["standard_error"] is None:
        return f"{score['mean_return']:.6g} in one episode"
    return f"{score['mean_return']:.6g} ± {score['standard_error']:.2g} over {score['episodes']} episodes"


def _checks(entry: Mapping[str, Any]) -> str:
    runs = {name: entry[name] for name in ("random", "recorded") if name in entry}
    return "; ".join(
        f"{run['actions']} actions on {name} observations, difference {run['worst']:.1e}" for name, run in runs.items()
    )
