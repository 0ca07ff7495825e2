"""Serves one simulator to the process that started this one: lines on two pipes, tensors in a file that both map.

Each request is a line, and so is its answer:

    {"family": ..., "task": ..., "count": ..., "device": ...}   -> {"observation": [...], "action": [...], ...}
    {"memory": path, "offsets": {...}}                          -> {"probe_sum": ...}
    gpu {"handle": ..., "offsets": {...}}                       -> {"reason": ""}
    use gpu                                                     -> done
    reset SEED                                                  -> done
    step                                                        -> done

An answer that starts with `failed` is followed by the reason as JSON, and is the last answer. The end of the requests
means that the client is gone, for whatever reason: this process then exits.

`gpu` is optional. It offers memory of a GPU, by a handle of CUDA IPC, in place of the file. If this process can map it,
it adds 1 to each number of the probe there. `use gpu` follows if the client has read them; otherwise the file is used.
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

from .gpu_memory import GpuMemory

if TYPE_CHECKING:
    import torch

ENGINES = {"isaacgym": (".isaac_gym", "IsaacGymEngine"), "isaaclab": (".isaac_lab", "IsaacLabEngine")}
PROBE_ELEMENTS = 64


def action_type(engine: Any) -> Any:
    """Returns the numpy type of an element of an action in the memory that both processes map."""
    return np.float32 if engine.actions.kind == "continuous" else np.int64


class Memory:
    """The file that client and server map, as arrays that are written in place."""

    def __init__(self, path: str, offsets: dict[str, int], count: int, engine: Any) -> None:
        """Maps the file.

        Args:
            path: Path of the file.
            offsets: Where each tensor starts, in bytes.
            count: Number of lanes.
            engine: The engine, which states the shapes.
        """
        with open(path, "r+b") as file:  # noqa: PTH123
            self._map = mmap.mmap(file.fileno(), 0)
        self._offsets = offsets
        observed = (count, *engine.observation_shape)
        self.action = self._array("action", (count, *engine.actions.shape), action_type(engine))
        self.observation = self._array("observation", observed, np.float32)
        self.reward = self._array("reward", (count,), np.float32)
        self.terminated = self._array("terminated", (count,), np.bool_)
        self.truncated = self._array("truncated", (count,), np.bool_)
        self.final_observation = self._array("final_observation", observed, np.float32)
        self.probe_sum = float(self._array("probe", (PROBE_ELEMENTS,), np.float64).sum())

    def _array(self, name: str, shape: Any, dtype: Any) -> Any:
        size = int(np.prod(shape))
        return np.frombuffer(self._map, dtype, size, self._offsets[name]).reshape(shape)

    def pin(self, device: Any) -> None:
        """Registers the memory with CUDA for direct copies to a device; if that fails, copies are only slower."""
        import torch

        address = np.frombuffer(self._map, np.uint8).ctypes.data
        cudart: Any = torch.cuda.cudart
        with torch.cuda.device(device):
            if int(cudart().cudaHostRegister(address, len(self._map), 0)):
                # The error stays in CUDA, and torch would raise it after the next kernel launch.
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, device=device)


class SharedLanes:
    """The lanes of an engine: copies tensors between its device and the shared memory."""

    def __init__(self, engine: Any, memory: Memory) -> None:
        """Maps the memory to torch tensors; by now torch is imported after all modules that must precede it."""
        import torch

        self._engine, self._torch = engine, torch
        self._device = torch.device(engine.device)
        if self._device.type == "cuda":
            memory.pin(self._device)
        names = ("action", "observation", "reward", "terminated", "truncated", "final_observation")
        self._memory = {name: torch.from_numpy(getattr(memory, name)) for name in names}
        self._offered: dict[str, torch.Tensor] | None = None

    def offer(self, handle: str, offsets: dict[str, int], map_memory: Any = GpuMemory) -> str:
        """Maps memory of a GPU and adds 1 to its probe; returns why that is impossible, or an empty text.

        Args:
            handle: Of CUDA IPC, in hexadecimal digits.
            offsets: Where each tensor starts, in bytes.
            map_memory: Maps the memory.
        """
        if self._device.type != "cuda":
            return f"the simulator computes on {self._device}"
        shapes = {name: tuple(tensor.shape) for name, tensor in self._memory.items()}
        shapes["probe"] = (PROBE_ELEMENTS,)
        try:
            types = {"action": np.dtype(action_type(self._engine)).str}
            tensors = map_memory(bytes.fromhex(handle), offsets, shapes, self._device, types).tensors
            tensors["probe"] += 1.0
            self._finish()
        except Exception as error:  # whatever torch and the driver raise: the file works without them
            return f"{type(error).__name__}: {error}"
        self._offered = tensors
        return ""

    def use_gpu(self) -> None:
        """Uses the memory that was offered from now on.

        Raises:
            ValueError: No memory was offered, or it could not be mapped.
        """
        if self._offered is None:
            raise ValueError("no memory of a GPU was offered that could be mapped")
        self._memory = self._offered

    def reset(self, seed: int) -> None:
        """Starts an episode in every lane."""
        with self._torch.no_grad():
            self._copy({"observation": self._engine.reset(seed)})

    def step(self) -> None:
        """Steps every lane with the action in the memory."""
        with self._torch.no_grad():
            # Cloned: a simulator may keep its action, and the memory changes under it.
            action = self._memory["action"].to(self._device, copy=True)
            observation, reward, terminated, truncated, final_observation = self._engine.step(action)
            tensors = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
            if bool((terminated | truncated).any()):
                tensors["final_observation"] = final_observation
            self._copy(tensors)

    def _copy(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self._memory[name].copy_(tensor, non_blocking=True)
        self._finish()

    def _finish(self) -> None:
        """Waits until the memory has been written."""
        if self._device.type == "cuda":
            self._torch.cuda.current_stream(self._device).synchronize()


def seed_everything(seed: int) -> None:
    """Seeds every random generator that the simulators use."""
    import random

    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Answers requests until they end."""
    opening = json.loads(requests.readline())
    module, engine_class = ENGINES[opening["family"]]
    engine = getattr(importlib.import_module(module, __package__), engine_class)(opening)
    description = {
        "observation": list(engine.observation_shape),
        "entries": engine.entries,
        "action": list(engine.actions.shape),
        "action_kind": engine.actions.kind,
        "action_choices": engine.actions.choices,
        "low": engine.actions.low,
        "high": engine.actions.high,
        "note": engine.note,
    }
    _answer(responses, json.dumps(description))
    placement = json.loads(requests.readline())
    memory = Memory(placement["memory"], placement["offsets"], opening["count"], engine)
    lanes = SharedLanes(engine, memory)
    _answer(responses, json.dumps({"probe_sum": memory.probe_sum}))
    for line in requests:
        verb, _, argument = line.decode().strip().partition(" ")
        answer = "done"
        if verb == "step":
            lanes.step()
        elif verb == "gpu":
            answer = json.dumps({"reason": lanes.offer(**json.loads(argument))})
        elif verb == "use":
            lanes.use_gpu()
        else:
            lanes.reset(int(argument))
        _answer(responses, answer)
    engine.close()


def _answer(responses: BinaryIO, line: str) -> None:
    responses.write(line.encode() + b"\n")
    responses.flush()


def main(arguments: list[str]) -> None:
    """Serves on the given descriptors, then exits without waiting for threads that the simulator left."""
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
    # The simulators' own threads and exit handlers are known to hang or crash.
    os._exit(code)
