"""Checkpoints of released versions, restored by the learner of today."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from google.protobuf import json_format
from released import HOMES, ReleasedHome, name

from agentpod.algorithms import Algorithm, make
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.learner.checkpoint_files import Counters, freeze, restore
from agentpod.learner.replay_files import ReplayFiles
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import fetch_latest, read_part
from podrace.checkpoint_store.replay_parts import PREFIX, STATE
from podrace.tensor_transport.codec import decode
from simulators import make as make_simulator
from simulators.base import Simulator

ENVIRONMENT = "cartpole"
OF_RUNNING_EPISODES = {"return_carry"}
"""Tensors that start again because an agent that is restored begins new episodes."""

LATER = {"environment_steps", "initial_learning_rate"}
"""Tensors that version 0.1.0 does not save."""


@pytest.fixture(params=HOMES, ids=name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FolderStore:
    return FolderStore(ReleasedHome(request.param, tmp_path).path / "store")


def checkpoints(store: FolderStore) -> list[tuple[Manifest, Mapping[str, bytes]]]:
    """The last checkpoint of each agent of the small environment, without its replay memory."""
    found = (fetch_latest(store, pointer.agent_id, without=PREFIX) for pointer in store.list_pointers())
    latest = [(one.manifest, one.parts) for one in found if one]
    return [one for one in latest if one[0].spec["environment"]["id"] == ENVIRONMENT]


def simulator_of(manifest: Manifest) -> Simulator:
    return make_simulator(ENVIRONMENT, int(manifest.spec["environment"]["count"]))


def algorithm_of(manifest: Manifest, simulator: Simulator) -> Algorithm:
    values = json_format.MessageToDict(manifest.hyperparameters)
    spaces = simulator.observation_space, simulator.action_space
    # A seed of no agent: whatever is right afterwards came from the checkpoint.
    return make(manifest.algorithm, *spaces, values, manifest.seed + 1)


def memory_parts(manifest: Manifest) -> list[Part]:
    return [part for part in manifest.parts if part.name.startswith(PREFIX)]


def empty_replay(algorithm: Algorithm, simulator: Simulator) -> ReplayBuffer:
    memory = algorithm.memory
    rows = replay_rows(memory.replay_capacity, memory.horizon, simulator.count)
    fields = replay_fields(simulator.observation_space, simulator.action_space, rows, simulator.count)
    tensors = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    return ReplayBuffer(tensors, memory.horizon, prioritized=memory.prioritized)


def test_an_agent_restored_from_a_released_checkpoint_has_every_tensor_of_it(store: FolderStore) -> None:
    found = checkpoints(store)
    assert {manifest.algorithm for manifest, _ in found} == {"ppo", "dqn"}
    for manifest, parts in found:
        algorithm = algorithm_of(manifest, simulator_of(manifest))
        restore(algorithm, parts)
        again = freeze(algorithm, Counters.of(manifest)).parts()
        assert again["policy"] == parts["policy"]
        before, now = decode(parts["learner"])[0], decode(again["learner"])[0]
        assert now.keys() - before.keys() <= LATER
        assert before.keys() <= now.keys()
        changed = {name for name, tensor in before.items() if not torch.equal(tensor, now[name])}
        assert changed <= OF_RUNNING_EPISODES


def test_a_released_replay_memory_is_restored_row_by_row(store: FolderStore) -> None:
    found = [(manifest, memory_parts(manifest)) for manifest, _ in checkpoints(store)]
    found = [(manifest, parts) for manifest, parts in found if parts]
    assert found
    for manifest, parts in found:
        simulator = simulator_of(manifest)
        replay = empty_replay(algorithm_of(manifest, simulator), simulator)
        assert ReplayFiles(store, 2**40).restore(parts, replay) == replay.size
        assert replay.steps == manifest.environment_steps
        files = {part.name: decode(read_part(store, part))[0] for part in parts}
        state = files.pop(STATE)
        assert replay.size == int(state["turns"][2]) * replay.segment_steps
        for tensors in files.values():
            # The last row of the newest segment is marked as truncated, because the environments are reset.
            rows = tensors["rows"][tensors["rows"] != replay.newest_row]
            for key in ("observation", "action", "reward", "terminated", "truncated"):
                assert torch.equal(replay._rings[key][rows], tensors[key][tensors["rows"] != replay.newest_row])
        leaves = state["priorities.nodes"][: replay.capacity]
        assert torch.equal(replay._priorities.leaves, leaves if replay.prioritized else torch.zeros(0))
