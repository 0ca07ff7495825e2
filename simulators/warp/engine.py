"""Physics by MuJoCo Warp: many simulations of one model on one device, each call a program captured beforehand.

MuJoCo Warp launches about a hundred kernels a substep from Python, whatever the number of simulations. A call here is
recorded once and replayed: a CUDA graph on a GPU, Warp's own recording on processors (a thirtieth of the time for five
ants, a third for 128). Knows no task.
"""

from collections.abc import Callable
from dataclasses import fields

import mujoco_warp
import torch
import warp
from torch import Tensor

from podrace.errors import ResourceExhausted
from simulators.warp.models import Body
from simulators.warp.tasks import Fields

# Warp tells standard output of every kernel that it compiles; that is where results go.
warp.config.log_level = warp.LOG_WARNING

Program = Callable[[], None]
_WARM_UPS = 3


class WarpPhysics:
    """N simulations of a body.

        physics = WarpPhysics(body, count=4096, device=torch.device("cuda"), substeps=5)
        while True:
            physics.fields.ctrl.copy_(policy(physics.fields.qpos))
            physics.step()

    All that is called here and all that torch does with the fields is in the order of torch's current stream.

    Attributes:
        fields: Live state and what was computed of it. The state is qpos, qvel, ctrl and qacc_warmstart: everything
            else is computed from them, so that writing these four begins an episode. (`mujoco_warp.reset_data` writes
            the same and clears what the next step overwrites; but it makes its kernels anew at every call, which takes
            12 to 21 ms on processors, and forgets what overflowed.)
        count: Number of simulations, N.
        overflow: Of this physics.
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
        """Makes simulations in an unspecified state and compiles what computes them (a minute, once a machine).

        Args:
            body: The model.
            count: Number of simulations.
            device: Where they are computed.
            substeps: Of a step.
            contact_forces: A step computes `cfrc_ext`.
            kinematics: `compute_kinematics` will be called.
            nconmax: Contacts there is room for, on the average; 0: the body's.
            njmax: Rows of constraints there is room for in each simulation; 0: the body's.
            deterministic: On a GPU, at a cost: the same to the last bit in every run.
        """
        self.count = count
        warp.init()  # type: ignore[no-untyped-call]
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._device, self._warp_device = device, warp.device_from_torch(device)
        with warp.ScopedDevice(self._warp_device):
            self._model = mujoco_warp.put_model(body.model)
            # Written to standard output by kernels otherwise; `overflow` tells.
            self._model.opt.warn_overflow = 0
            self._model.opt.deterministic = deterministic
            nconmax, njmax = nconmax or body.nconmax, njmax or body.njmax
            self._data = mujoco_warp.make_data(body.model, nworld=count, nconmax=nconmax, njmax=njmax)
        self._substeps, self._contact_forces = substeps, contact_forces
        self.fields = Fields(**{field.name: _tensor(self._data, field.name) for field in fields(Fields)})
        self.fields.qpos.copy_(torch.as_tensor(body.qpos, dtype=torch.float32))
        self.overflow = Overflow(_tensor(self._data, "overflow"), nconmax, njmax)
        self.step = self._captured(self._step)
        self.compute_kinematics = self._captured(self._compute_kinematics) if kinematics else _nothing

    def _step(self) -> None:
        for _ in range(self._substeps):
            mujoco_warp.step(self._model, self._data)
        if self._contact_forces:
            # Of what the last substep left, as Gymnasium has it.
            mujoco_warp.rne_postconstraint(self._model, self._data)

    def _compute_kinematics(self) -> None:
        """What of a first state is observed: where bodies are, their inertias and velocities. No forces, no contacts.

        A hundredth of a step of the humanoid, where the whole of mj_forward would be a fifth.
        """
        mujoco_warp.kinematics(self._model, self._data)
        mujoco_warp.com_pos(self._model, self._data)
        mujoco_warp.com_vel(self._model, self._data)

    def _captured(self, function: Program) -> Program:
        """What replays the kernels that a function launches."""
        _wait_for(self._device)
        with warp.ScopedDevice(self._warp_device):
            # Compiles and loads what must not be loaded while it is captured.
            function()
            with warp.ScopedCapture(self._warp_device) as capture:
                function()
            warp.synchronize_device(self._warp_device)
        graph = capture.graph
        if self._device.type != "cuda":
            return lambda: warp.capture_launch(graph)
        streams: dict[int, warp.Stream] = {}

        def launch() -> None:
            current = torch.cuda.current_stream(self._device)
            if current.cuda_stream not in streams:
                streams[current.cuda_stream] = warp.stream_from_torch(current)  # type: ignore[no-untyped-call]
            warp.capture_launch(graph, stream=streams[current.cuda_stream])

        return launch


class Overflow:
    """Notices, without waiting for the device, that contacts or constraints found no room and were left out."""

    kinds = ("rows of constraints", "elements of constraints", "pairs that may touch", "contacts")
    """Bits 0 to 3 of mujoco_warp.OverflowType: what is wrong ever after. The others are of precision."""
    every_steps = 64
    """How often it is looked at."""

    def __init__(self, bits: Tensor, nconmax: int, njmax: int) -> None:
        """Watches the bits [N] int32 that MuJoCo Warp sets and never clears."""
        self._bits = bits
        self._sizes = f"contacts 'nconmax' ({nconmax}), of rows 'njmax' ({njmax})"
        self._masks = torch.tensor([1 << bit for bit in range(len(self.kinds))], dtype=torch.int32).to(bits.device)
        is_cuda = bits.device.type == "cuda"
        self._seen = torch.zeros(len(self.kinds), dtype=torch.int64, pin_memory=is_cuda)
        self._copied = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._steps = 0

    def look(self) -> None:
        """To be called at every step: tells of an overflow at most two times `every_steps` later.

        Raises:
            ResourceExhausted: Something found no room.
        """
        self._steps += 1
        if self._steps % self.every_steps == 0:
            if self._copied is None or self._copied.query():  # type: ignore[no-untyped-call]
                self._tell()
            self._copy()

    def check(self) -> None:
        """Waits for the device and tells.

        Raises:
            ResourceExhausted: Something found no room.
        """
        self._copy()
        if self._copied is not None:
            self._copied.synchronize()
        self._tell()

    def _copy(self) -> None:
        counts = ((self._bits[:, None] & self._masks) != 0).sum(0)
        self._seen.copy_(counts, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._bits.device))

    def _tell(self) -> None:
        lanes = [f"{kind} in {count}" for kind, count in zip(self.kinds, self._seen.tolist(), strict=True) if count]
        if lanes:
            raise ResourceExhausted(
                f"MuJoCo Warp had no room for {', '.join(lanes)} of {len(self._bits)} lanes, whose physics is wrong "
                f"since: raise the option for {self._sizes}"
            )


def captured(function: Program, device: torch.device) -> Program:
    """What replays a function of torch alone that reads and writes the same tensors at every call.

    On a GPU it is run a few times, as CUDA graphs need, and captured; elsewhere it is what is returned.
    """
    if device.type != "cuda":
        return function
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
    replay: Program = graph.replay
    return replay


def _tensor(data: object, name: str) -> Tensor:
    tensor: Tensor = warp.to_torch(getattr(data, name))
    return tensor


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _nothing() -> None:
    """Kinematics are not needed."""
