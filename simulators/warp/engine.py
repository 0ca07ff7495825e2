"""Computes physics with MuJoCo Warp: many simulations of one model on one device, each call recorded once and replayed.

MuJoCo Warp launches about a hundred kernels per substep from Python, whatever the number of simulations. So every call
is recorded once and then replayed: as a CUDA graph on a GPU, as Warp's own recording on the CPU (which takes a
thirtieth of the time for five ants, a third for 128). Independent of the task.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import mujoco_warp
import torch
import warp
from torch import Tensor

from podrace.errors import ResourceExhausted
from simulators.compilation import compiling
from simulators.cuda_graph import record_graph
from simulators.warp.kernel_cache import provide_kernels
from simulators.warp.models import Body
from simulators.warp.tasks import Fields

# Warp reports every kernel that it compiles on standard output, which is reserved for results.
warp.config.log_level = warp.LOG_WARNING
# Machine code for each GPU, as in images (simulators.warp.kernels); drivers would otherwise compile it at every start.
warp.config.cuda_output = "cubin"

Program = Callable[[], None]


class WarpPhysics:
    """N simulations of a body.

        physics = WarpPhysics(body, count=4096, device=torch.device("cuda"), substeps=5)
        while True:
            physics.fields.ctrl.copy_(policy(physics.fields.qpos))
            physics.step()

    All calls, and all that torch does with the fields, run in the order of torch's current stream.

    Attributes:
        fields: Live state, and what was computed from it. The state is qpos, qvel, ctrl and qacc_warmstart; everything
            else is computed from these four, so writing them starts an episode. (`mujoco_warp.reset_data` writes the
            same fields and clears those that the next step overwrites. But it builds its kernels again at every call,
            which takes 12 to 21 ms on the CPU, and clears the overflow bits.)
        count: Number of simulations, N.
        overflow: Watches this physics for overflow.
    """

    def __init__(
        self,
        body: Body,
        count: int,
        device: torch.device,
        *,
        substeps: int,
        contact_forces: bool = True,
        kinematics: bool = False,
        nconmax: int = 0,
        njmax: int = 0,
        deterministic: bool = False,
    ) -> None:
        """Creates simulations in an unspecified state and compiles their kernels (a minute, once per machine).

        Args:
            body: The model.
            count: Number of simulations.
            device: Where they are computed.
            substeps: Substeps per step.
            contact_forces: Whether a step computes `cfrc_ext`.
            kinematics: Whether `compute_kinematics` will be called.
            nconmax: Capacity for contacts, averaged over the simulations; 0: the body's default.
            njmax: Capacity for constraint rows in each simulation; 0: the body's default.
            deterministic: On a GPU: equal to the last bit in every run, at a cost in speed.
        """
        self.count = count
        warp.init()  # type: ignore[no-untyped-call]
        if device.type == "cuda":
            provide_kernels(Path(str(warp.config.kernel_cache_dir)))
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._device, self._warp_device = device, warp.device_from_torch(device)
        with warp.ScopedDevice(self._warp_device):
            self._model = mujoco_warp.put_model(body.model)
            # Otherwise kernels print to standard output; `overflow` reports it instead.
            self._model.opt.warn_overflow = 0
            self._model.opt.deterministic = deterministic
            nconmax, njmax = nconmax or body.nconmax, njmax or body.njmax
            self._data = mujoco_warp.make_data(body.model, nworld=count, nconmax=nconmax, njmax=njmax)
        self._substeps, self._contact_forces = substeps, contact_forces
        self.fields = Fields(**{field.name: _tensor(self._data, field.name) for field in fields(Fields)})
        self.fields.qpos.copy_(torch.as_tensor(body.qpos, dtype=torch.float32))
        self.overflow = Overflow(_tensor(self._data, "overflow"), nconmax, njmax)
        self.step = self._recorded(self.launch_step)
        self.compute_kinematics = self._recorded(self.launch_kinematics) if kinematics else _nothing

    def launch_step(self) -> None:
        """Steps by launching each kernel; see `launching`."""
        for _ in range(self._substeps):
            mujoco_warp.step(self._model, self._data)
        if self._contact_forces:
            # Computed from the state that the last substep left, as in Gymnasium.
            mujoco_warp.rne_postconstraint(self._model, self._data)

    def launch_kinematics(self) -> None:
        """Computes, by launching each kernel, the fields of a first state that are observed.

        These are poses, inertias and velocities of bodies, but no forces. Takes a hundredth of a humanoid's step; the
        whole of mj_forward would take a fifth.
        """
        mujoco_warp.kinematics(self._model, self._data)
        mujoco_warp.com_pos(self._model, self._data)
        mujoco_warp.com_vel(self._model, self._data)

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Makes kernels that are launched in the block part of what torch's current stream does, or captures."""
        if self._device.type != "cuda":
            yield
            return
        stream = warp.stream_from_torch(torch.cuda.current_stream(self._device))  # type: ignore[no-untyped-call]
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(warp.ScopedStream(stream, sync_enter=False))
            if torch.cuda.is_current_stream_capturing():
                # Conditional nodes need a capture that Warp knows of.
                scopes.enter_context(warp.ScopedCapture(stream=stream, external=True))
            yield

    def _recorded(self, function: Program) -> Program:
        """Records the kernels that a function launches, and returns a function that replays them."""
        # Streams of torch do not wait for the default stream. During a capture on one that does, as Warp's own streams
        # do, any use of the default stream in another thread fails and ends the capture.
        on_gpu = self._device.type == "cuda"
        side = warp.stream_from_torch(torch.cuda.Stream(self._device)) if on_gpu else None  # type: ignore[no-untyped-call]
        _wait_for(self._device)
        with warp.ScopedDevice(self._warp_device):
            # Compiles and loads modules, which must not happen during a capture.
            with compiling("MuJoCo Warp"):
                function()
            with warp.ScopedStream(side), warp.ScopedCapture(self._warp_device, side) as capture:
                function()
            warp.synchronize_device(self._warp_device)
        graph = capture.graph
        if not on_gpu:
            return lambda: warp.capture_launch(graph)
        streams: dict[int, warp.Stream] = {}

        def launch() -> None:
            current = torch.cuda.current_stream(self._device)
            if current.cuda_stream not in streams:
                streams[current.cuda_stream] = warp.stream_from_torch(current)  # type: ignore[no-untyped-call]
            warp.capture_launch(graph, stream=streams[current.cuda_stream])

        return launch


class Overflow:
    """Detects, without waiting for the device, that contacts or constraints were dropped for lack of capacity."""

    kinds = ("constraint rows", "constraint elements", "pairs that may touch", "contacts")
    """Bits 0 to 3 of mujoco_warp.OverflowType, which make the physics wrong. The others affect only precision."""
    every_steps = 64
    """Steps between two polls."""

    def __init__(self, bits: Tensor, nconmax: int, njmax: int) -> None:
        """Watches the bits [N] int32, which MuJoCo Warp sets and never clears."""
        self._bits = bits
        self._remedy = f"raise option 'nconmax' ({nconmax}) for contacts or 'njmax' ({njmax}) for constraint rows"
        self._masks = torch.tensor([1 << bit for bit in range(len(self.kinds))], dtype=torch.int32).to(bits.device)
        is_cuda = bits.device.type == "cuda"
        self._seen = torch.zeros(len(self.kinds), dtype=torch.int64, pin_memory=is_cuda)
        self._copied = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._steps = 0

    def poll(self) -> None:
        """Reports an overflow at most two times `every_steps` steps after it; to be called at every step.

        Raises:
            ResourceExhausted: A capacity was exceeded.
        """
        self._steps += 1
        if self._steps % self.every_steps == 0:
            if self._copied is None or self._copied.query():  # type: ignore[no-untyped-call]
                self._raise_if_any()
            self._copy()

    def check(self) -> None:
        """Waits for the device, then reports an overflow.

        Raises:
            ResourceExhausted: A capacity was exceeded.
        """
        self._copy()
        if self._copied is not None:
            self._copied.synchronize()
        self._raise_if_any()

    def _copy(self) -> None:
        counts = ((self._bits[:, None] & self._masks) != 0).sum(0)
        self._seen.copy_(counts, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._bits.device))

    def _raise_if_any(self) -> None:
        lanes = [f"{kind} in {count}" for kind, count in zip(self.kinds, self._seen.tolist(), strict=True) if count]
        if lanes:
            raise ResourceExhausted(
                f"MuJoCo Warp had no room for {', '.join(lanes)} of {len(self._bits)} lanes, "
                f"whose physics is wrong since then: {self._remedy}"
            )


def as_cuda_graph(function: Program, device: torch.device) -> Program:
    """Returns a replay of a function that uses only torch, and reads and writes the same tensors at every call.

    On a GPU the function is run a few times to warm up, then captured as a CUDA graph; elsewhere it is returned as is.
    """
    if device.type != "cuda":
        return function
    replay, _ = record_graph(function, (), device)
    return replay


def _tensor(data: object, name: str) -> Tensor:
    tensor: Tensor = warp.to_torch(getattr(data, name))
    return tensor


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _nothing() -> None:
    """Replaces `compute_kinematics` where the task does not need it."""
