"""Writes and reads what an exported policy says about itself: JSON under one key of the metadata of an ONNX file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from podrace.checkpoint.v1.policy_pb2 import PolicyDescription
from podrace.errors import DataLoss

KEY, VERSION = "podrace", 1
HEAD_PARAMETERS = ("log_std", "exploration")
"""Tensors that a head needs to sample actions."""


@dataclass(frozen=True)
class MemberFacts:
    """Where a policy comes from, and how it acts."""

    manifest_digest: str
    tournament_id: str
    agent_id: str
    algorithm: str
    description: PolicyDescription
    head_parameters: Mapping[str, Sequence[float]]
    """Parameters of the head by name."""


def as_metadata(members: Sequence[MemberFacts]) -> dict[str, str]:
    """Returns the metadata of a file with these members."""
    entries = [
        {
            "manifest_digest": member.manifest_digest,
            "tournament_id": member.tournament_id,
            "agent_id": member.agent_id,
            "algorithm": member.algorithm,
            "policy": json_format.MessageToDict(member.description, preserving_proto_field_name=True),
            "head_parameters": {name: list(values) for name, values in member.head_parameters.items()},
        }
        for member in members
    ]
    return {KEY: json.dumps({"version": VERSION, "members": entries}, sort_keys=True)}


def members_in(metadata: Mapping[str, str]) -> list[MemberFacts]:
    """Reads back what `as_metadata` returned.

    Raises:
        DataLoss: There is none, or it has a later version.
    """
    try:
        found: dict[str, Any] = json.loads(metadata[KEY])
        if found["version"] != VERSION:
            raise DataLoss(
                f"an exported policy of version {found['version']}: this build reads {VERSION}; update podrace"
            )
        return [_facts(entry) for entry in found["members"]]
    except (KeyError, TypeError, ValueError, json_format.ParseError) as error:
        raise DataLoss(f"the file was not exported by podrace: its metadata has no usable {KEY!r} ({error})") from None


def _facts(entry: Mapping[str, Any]) -> MemberFacts:
    return MemberFacts(
        entry["manifest_digest"],
        entry["tournament_id"],
        entry["agent_id"],
        entry["algorithm"],
        json_format.ParseDict(entry["policy"], PolicyDescription(), ignore_unknown_fields=True),
        entry["head_parameters"],
    )
