"""Owns what a manifest says of how its checkpoint came about, beside its counters: enough to train the agent again."""

import platform
from functools import cache
from importlib import metadata

import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PACKAGES = ("podrace", "numpy", "gymnasium", "mujoco", "mujoco-warp", "envpool", "ale-py", "pandas")
"""Whose versions may decide what is computed; those that are not installed are left out."""


def as_struct(spec: TournamentSpec) -> Struct:
    """A specification as manifests have it."""
    struct = Struct()
    struct.update(json_format.MessageToDict(spec, preserving_proto_field_name=True))
    return struct


def spec_of(manifest: Manifest) -> TournamentSpec:
    """The specification that a manifest was published with; empty if it says none."""
    return json_format.ParseDict(json_format.MessageToDict(manifest.spec), TournamentSpec(), ignore_unknown_fields=True)


def add_provenance(manifest: Manifest, agent: Agent, spec: Struct) -> None:
    """Adds what the agent was made of, and what it is trained with."""
    manifest.spec.CopyFrom(spec)
    manifest.starting_manifest_digest = agent.starting_checkpoint.manifest_digest
    manifest.versions.update(versions())


@cache
def versions() -> dict[str, str]:
    """Versions of what computes here, by name."""
    found = {
        "machine": f"{platform.system()} {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
