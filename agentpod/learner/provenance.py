"""Records in a manifest how its checkpoint was made, so that the agent can be trained again."""

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
"""Packages whose versions can change what is computed; those that are not installed are left out."""


def as_struct(spec: TournamentSpec) -> Struct:
    """Returns a specification in the form that manifests hold."""
    struct = Struct()
    struct.update(json_format.MessageToDict(spec, preserving_proto_field_name=True))
    return struct


def spec_of(manifest: Manifest) -> TournamentSpec:
    """Returns the specification that a manifest was published with; empty if it holds none."""
    return json_format.ParseDict(json_format.MessageToDict(manifest.spec), TournamentSpec(), ignore_unknown_fields=True)


def add_provenance(manifest: Manifest, agent: Agent, spec: Struct) -> None:
    """Adds the specification, the starting checkpoint and the software versions to a manifest."""
    manifest.spec.CopyFrom(spec)
    manifest.starting_manifest_digest = agent.starting_checkpoint.manifest_digest
    manifest.versions.update(versions())


@cache
def versions() -> dict[str, str]:
    """Returns the versions of the machine, Python, torch and the installed PACKAGES, by name."""
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
