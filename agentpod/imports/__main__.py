"""Converts the model that a folder names: `python -m agentpod.imports FOLDER`, run by `podrace import`.

The folder has `request.json`. The exported policy is written to it, and what was found is printed as one JSON value.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from google.protobuf import json_format

from agentpod.export import comparison
from agentpod.imports.conversion import Converted, convert
from agentpod.imports.episodes import returns
from agentpod.imports.model_file import SavedModel, read_model
from agentpod.imports.statistics_file import read_statistics
from agentpod.models.description import describe
from podrace.digests import digest
from podrace.errors import PodraceError
from podrace.limits.config import EVERYTHING
from podrace.policy import runtime
from podrace.policy.graph import Member, build
from podrace.policy.metadata import HEAD_PARAMETERS, MemberFacts, as_metadata
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators.base import Simulator
from simulators.messages import make_simulator

MODEL_FILE = "policy.onnx"


def main(arguments: Sequence[str]) -> int:
    """Converts, and returns the exit code."""
    folder = Path(arguments[0])
    try:
        with torch.no_grad():
            print(json.dumps(converted(folder, json.loads((folder / "request.json").read_text()))))
    except PodraceError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
        return 1
    return 0


def converted(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the exported policy, and returns what was found.

    Raises:
        PodraceError: A file cannot be read or converted, or the exported policy acts differently.
    """
    model = read_model(Path(request["model"]))
    environment = json_format.ParseDict(request["environment"], EnvironmentSpec())
    environment.count = comparison.LANES
    simulator = _simulator(environment)
    try:
        inputs = math.prod(simulator.observation_space.shape)
        found = read_statistics(Path(request["statistics"]), inputs) if request["statistics"] else None
        policy = convert(model, simulator.observation_space, simulator.action_space, found)
        data = _onnx(_digest(model, request["statistics"]), policy, Path(request["model"]).stem)
        exported = comparison.of_onnx(runtime.Policy(data))
        runs = {
            "random": comparison.compare_random([policy.policy], exported).checked("random observations"),
            "recorded": comparison.compare_recorded([policy.policy], exported, simulator).checked(
                "recorded observations"
            ),
        }
    finally:
        simulator.close()
    (folder / MODEL_FILE).write_bytes(data)
    return {
        "algorithm": policy.algorithm,
        "stable_baselines3": model.version,
        "model_sha256": model.digest,
        "environment_steps": int(model.setting("num_timesteps", 0) or 0),
        "hidden_sizes": list(policy.policy.network.hidden_sizes),
        "activation": policy.policy.network.activation,
        "normalized": bool(found),
        "score": _score(policy, environment, request["episodes"]),
        "files": {MODEL_FILE: {"sha256": digest(data), **{name: vars(run) for name, run in runs.items()}}},
    }


def _simulator(environment: EnvironmentSpec) -> Simulator:
    """Makes the environment of the model. The user who names it also runs this command, so user code is allowed."""
    return make_simulator(environment, torch.device("cpu"), EVERYTHING)


def _digest(model: SavedModel, statistics: str) -> str:
    """Returns the digest that names the policy: the same model acts differently with other statistics."""
    if not statistics:
        return model.digest
    return digest(f"{model.digest}\n{digest(Path(statistics).read_bytes())}".encode())


def _onnx(name_digest: str, found: Converted, name: str) -> bytes:
    description = describe(found.policy)
    description.test_vectors_part = ""
    tensors = {key: tensor.numpy() for key, tensor in found.policy.tensors().items()}
    parameters = {key: tensors[key].tolist() for key in HEAD_PARAMETERS if key in tensors}
    facts = MemberFacts(name_digest, "", name, found.algorithm, description, parameters)
    return build([Member(description, tensors)], as_metadata([facts]))


def _score(found: Converted, environment: EnvironmentSpec, episodes: int) -> dict[str, Any] | None:
    """Returns mean and standard error of the return of `episodes` episodes; None if it is 0, or one does not end."""
    if not episodes:
        return None
    environment.count = episodes
    simulator = _simulator(environment)
    try:
        totals = returns(found, simulator)
    finally:
        simulator.close()
    if not totals:
        return None
    error = statistics.stdev(totals) / math.sqrt(len(totals)) if len(totals) > 1 else 0.0
    return {"mean_return": statistics.fmean(totals), "standard_error": error, "episodes": len(totals)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
