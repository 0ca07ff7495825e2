"""Exports the checkpoints of a folder: `python -m agentpod.export FOLDER`, run by `podrace export`.

The folder has `request.json`, with the specification of the tournament, and a folder for each member with
`manifest.json` and its parts. The exported files are written to it, and the result is printed as one JSON value.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from google.protobuf import json_format

from agentpod.export import comparison
from agentpod.export.network_graph import network_nodes
from agentpod.export.torch_program import saved, traced
from agentpod.learner.checkpoint_files import load_policy
from agentpod.learner.provenance import spec_of
from agentpod.models.description import policy_of
from agentpod.models.policy import Policy
from podrace.checkpoint_store.manifest import manifest_from_bytes
from podrace.client.delivery import FetchedCheckpoint
from podrace.digests import digest
from podrace.errors import InvalidArgument, PodraceError
from podrace.limits.config import NOTHING
from podrace.policy import loading, runtime
from podrace.policy.agents import of_agent
from podrace.printable import printable
from podrace.specification.declared_algorithms import NETWORK_CLASS, names_code
from podrace.tensor_transport.codec import decode
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from simulators.base import Simulator
from simulators.messages import make_simulator

ONNX_FILE, TORCH_FILE = "policy.onnx", "policy.pt2"


def main(arguments: Sequence[str]) -> int:
    """Exports, and returns the exit code."""
    folder = Path(arguments[0])
    try:
        with torch.no_grad():
            print(json.dumps(export(folder)))
    except PodraceError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
        return 1
    return 0


def export(folder: Path) -> dict[str, Any]:
    """Writes the files that the request of a folder names, and returns how they compare with the torch policy.

    Raises:
        DataLoss: An exported policy acts differently from the torch policy.
        InvalidArgument: A policy has a network that the specification in the request does not name.
        PodraceError: A checkpoint cannot be read.
    """
    request = json.loads((folder / "request.json").read_text())
    checkpoints = [of_agent(_read(folder / digest_), request["agent"]) for digest_ in request["members"]]
    spec = json_format.ParseDict(request["spec"], TournamentSpec(), ignore_unknown_fields=True)
    policies = [_policy(checkpoint, spec) for checkpoint in checkpoints]
    networks = {one.manifest_digest: network_nodes(policy) for one, policy in zip(checkpoints, policies, strict=True)}
    data = b""
    if "onnx" in request["formats"] or not any(networks.values()):
        data = loading.checked_onnx_file(checkpoints, networks)
    simulator, absence = _simulator(checkpoints[0])
    found: dict[str, Any] = {}
    if "onnx" in request["formats"]:
        (folder / ONNX_FILE).write_bytes(data)
        exported = comparison.of_onnx(runtime.Policy(data))
        found[ONNX_FILE] = _compared("onnx", policies, exported, simulator)
    if "torch" in request["formats"]:
        program = traced(policies)
        saved(program, folder / TORCH_FILE)
        found[TORCH_FILE] = _compared("torch", policies, program.module(), simulator)
    if simulator:
        simulator.close()
    for name, entry in found.items():
        entry["sha256"] = digest((folder / name).read_bytes())
    return {"files": found, "not_recorded": absence}


def _read(folder: Path) -> FetchedCheckpoint:
    data = (folder / "manifest.json").read_bytes()
    parts = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    return FetchedCheckpoint(folder.name, data, manifest_from_bytes(data), parts)


def _policy(checkpoint: FetchedCheckpoint, spec: TournamentSpec) -> Policy:
    """Rebuilds the policy of a checkpoint. A manifest decides no import: the specification must name its network."""
    description = loading.described(checkpoint)
    if not names_code(spec, NETWORK_CLASS, address := description.network_class):
        shown = checkpoint.manifest_digest[:12]
        raise InvalidArgument(
            f"checkpoint {shown}: network_class = {address[:100]!r}: the specification of its tournament does not name"
            " this network"
        )
    policy = policy_of(description)
    load_policy(policy.tensors(), decode(checkpoint.parts[description.part])[0])
    policy.load(policy.flat.clone())
    return policy


def _simulator(checkpoint: FetchedCheckpoint) -> tuple[Simulator | None, str]:
    """Makes the environment of a checkpoint to record observations in; otherwise returns why there is none."""
    environment = spec_of(checkpoint.manifest).environment
    if not environment.id:
        return None, "the checkpoint does not state its environment"
    environment.count = comparison.LANES
    try:
        return make_simulator(environment, torch.device("cpu"), NOTHING), ""
    except PodraceError as error:
        return None, error.message


def _compared(
    name: str, policies: Sequence[Policy], exported: comparison.Exported, simulator: Simulator | None
) -> dict[str, Any]:
    runs = {"random": comparison.compare_random(policies, exported).checked(f"{name}, random observations")}
    if simulator:
        recorded = comparison.compare_recorded(policies, exported, simulator)
        runs["recorded"] = recorded.checked(f"{name}, recorded observations")
    return {key: vars(run) for key, run in runs.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
