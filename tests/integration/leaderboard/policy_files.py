"""Makes policy files and manifests as pods publish them, for tests of what a leaderboard accepts."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.digests import digest
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification import catalog

INPUTS, OUTPUTS = 4, 2


def policy_file(agent: Agent, text: str = "") -> bytes:
    """Returns a policy of the agent's algorithm and hyperparameters; equal texts give equal policies."""
    return safetensors(policy_shapes(agent), text)


def policy_shapes(agent: Agent) -> dict[str, list[int]]:
    """Returns names and shapes of the tensors of a policy without convolutions and recurrent layer."""
    declared = catalog.ALGORITHMS[agent.algorithm].hyperparameters
    values = {name: one.default for name, one in declared.items()} | {
        name: agent.hyperparameters[name] for name in agent.hyperparameters
    }
    hidden: Any = values["hidden_sizes"]
    shapes: dict[str, list[int]] = {}
    if values["normalize_observations"]:
        shapes |= {"observation_mean": [INPUTS], "observation_variance": [INPUTS]}
    for layer, (inputs, units) in enumerate(pairwise([INPUTS, *map(int, hidden), OUTPUTS])):
        shapes |= {f"actor.{layer}.weight": [units, inputs], f"actor.{layer}.bias": [units]}
    return shapes


def safetensors(shapes: Mapping[str, Sequence[int]], text: str = "", dtype: str = "F32") -> bytes:
    """Returns a file with tensors of these shapes, whose numbers follow from the text."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    described = json.dumps(header).encode()
    numbers = bytes.fromhex(digest(text.encode())[:6]) + b"\x3c"
    return len(described).to_bytes(8, "little") + described + numbers * (end // 4)


def steps_behind(store: CheckpointStore, agent: Agent) -> int:
    """Returns the environment steps behind the checkpoint that an agent starts from."""
    start = agent.starting_checkpoint.manifest_digest
    return int(read_manifest(store, start).lineage_environment_steps) if start else 0


def manifest_of(agent: Agent, policy: bytes, score: float, **changes: Any) -> Manifest:
    """Returns the manifest of a scored checkpoint; changes are fields of the manifest or of the evaluation."""
    steps = changes.pop("environment_steps", 1000)
    evaluation = Evaluation(
        mean_return=score,
        variance=changes.pop("variance", 4.0),
        episodes=changes.pop("episodes", 16),
        policy_digest=changes.pop("policy_digest", digest(policy)),
        evaluator_fault=changes.pop("evaluator_fault", ""),
        **changes.pop("evaluation", {}),
    )
    manifest = Manifest(
        tournament_id=agent.tournament_id,
        algorithm=agent.algorithm,
        hyperparameters=agent.hyperparameters,
        seed=agent.seed,
        environment_steps=steps,
        lineage_environment_steps=changes.pop("lineage_environment_steps", steps),
        core_seconds=changes.pop("core_seconds", 10.0),
        evaluation=evaluation,
    )
    for name, value in changes.items():
        if isinstance(value, list):
            getattr(manifest, name).extend(value)
        else:
            setattr(manifest, name, value)
    return manifest
