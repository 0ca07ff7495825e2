"""Serves one simulator to the process that started this one: words by two pipes, tensors in a file that both map.

Each request is a line, and so is its answer:

    {"family": ..., "task": ..., "count": ..., "device": ...}   -> {"observation": [...], "action": [...], ...}
    {"memory": path, "offsets": {...}}                          -> {"probe_sum": ...}
    reset SEED                                                  -> done
    step                                                        -> done

An answer that begins with `failed` has the reason, as JSON, and is the last one. The end of the requests means that the
other side is gone, however it went: this process ends too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    import torch

MODULES = {"isaacgym": ".isaac_gym", "isaaclab": ".isaac_lab"}
PROBE_ELEMENTS = 64


class Memory:
    """What both sides map, as arrays: written in place."""

    def __init__(self, path: str, offsets: dict[str, int], count: int, engine: Any) -> None:
        """Maps the file.

        Args:
            path: Of the file.
            offsets: Where each tensor begins, in bytes.
            count: Number of lanes.
            engine: States the shapes.
        """
        with open(path, "r+b") as file:  # noqa: PTH123
            self._map = mmap.mmap(file.fileno(), 0)
        self._offsets = offsets
        observed = (count, *engine.observation_shape)
        self.action = self._array("action", (count, *engine.action_shape), np.float32)
        self.observation = self._array("observation", observed, np.float32)
        self.reward = self._array("reward", (count,), np.float32)
        self.terminated = self._array("terminated", (count,), np.bool_)
        self.truncated = self._array("truncated", (count,), np.bool_)
        self.final_observation = self._array("final_observation", observed, np.float32)
        self.probe_sum = float(self._array("probe", (PROBE_ELEMENTS,), np.float64).sum())

    def _array(self, name: str, shape: Any, dtype: Any) -> Any:
        size = int(np.prod(shape))
        return np.frombuffer(self._map, dtype, size, self._offsets[name]).reshape(shape)

    def pin(self) -> None:
        """Lets a GPU copy from and to the memory directly; where it cannot, copies are only slower."""
        import torch

        address = np.frombuffer(self._map, np.uint8).ctypes.data
        cudart: Any = torch.cuda.cudart
        cudart().cudaHostRegister(address, len(self._map), 0)


class Lanes:
    """Moves tensors between the simulator's device and the memory."""

    def __init__(self, engine: Any, memory: Memory) -> None:
        """Begins nothing; torch is imported by now, after whatever had to come before it."""
        import torch

        self._engine, self._torch = engine, torch
        self._device = torch.device(engine.device)
        if self._device.type == "cuda":
            memory.pin()
        names = ("action", "observation", "reward", "terminated", "truncated", "final_observation")
        self._memory = {name: torch.from_numpy(getattr(memory, name)) for name in names}

    def reset(self, seed: int) -> None:
        """Begins episodes."""
        with self._torch.no_grad():
            self._copy({"observation": self._engine.reset(seed)})

    def step(self) -> None:
        """Steps by the action that lies in the memory."""
        with self._torch.no_grad():
            # Cloned: a simulator may keep what it is given, and the memory changes under it.
            action = self._memory["action"].to(self._device, copy=True)
            observation, reward, terminated, truncated, final_observation = self._engine.step(action)
            tensors = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
            if bool((terminated | truncated).any()):
                tensors["final_observation"] = final_observation
            self._copy(tensors)

    def _copy(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self._memory[name].copy_(tensor, non_blocking=True)
        if self._device.type == "cuda":
            self._torch.cuda.current_stream(self._device).synchronize()


def seed_everything(seed: int) -> None:
    """Seeds what simulators draw from."""
    import random

    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Answers requests until there are no more."""
    opening = json.loads(requests.readline())
    engine = importlib.import_module(MODULES[opening["family"]], __package__).Engine(opening)
    said = {
        "observation": list(engine.observation_shape),
        "action": list(engine.action_shape),
        "low": engine.low,
        "high": engine.high,
        "note": engine.note,
    }
    _answer(responses, json.dumps(said))
    placement = json.loads(requests.readline())
    memory = Memory(placement["memory"], placement["offsets"], opening["count"], engine)
    lanes = Lanes(engine, memory)
    _answer(responses, json.dumps({"probe_sum": memory.probe_sum}))
    for line in requests:
        verb, _, argument = line.decode().strip().partition(" ")
        if verb == "step":
            lanes.step()
        else:
            lanes.reset(int(argument))
        _answer(responses, "done")
    engine.close()


def _answer(responses: BinaryIO, line: str) -> None:
    responses.write(line.encode() + b"\n")
    responses.flush()


def main(arguments: list[str]) -> None:
    """Serves by the descriptors that were given, and ends the process without waiting for what a simulator left."""
    requests, responses = os.fdopen(int(arguments[0]), "rb"), os.fdopen(int(arguments[1]), "wb")
    code = 0
    try:
        serve(requests, responses)
    except BrokenPipeError:
        code = 1
    except BaseException as error:
        traceback.print_exc()
        code = 1
        reason = {"error": f"{type(error).__name__}: {error}", "missing": getattr(error, "name", None)}
        if not isinstance(error, ModuleNotFoundError):
            reason["missing"] = None
        with contextlib.suppress(BrokenPipeError):
            _answer(responses, "failed " + json.dumps(reason))
    sys.stdout.flush()
    sys.stderr.flush()
    # The simulators' own threads and exit handlers have been seen to hang, or to crash.
    os._exit(code)
