"""Properties of the lanes on MuJoCo Warp: physics, resets, first states, and errors detected without waiting."""

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from podrace.errors import ResourceExhausted, Unimplemented
from simulators import make
from simulators.cuda_graph import Capturable, Polled
from simulators.warp import engine as warp_engine
from simulators.warp import models as warp_models
from simulators.warp.engine import Overflow, WarpPhysics, as_cuda_graph
from simulators.warp.models import load_body
from simulators.warp.simulator import WarpSimulator

# On a machine without compiled kernels, the first test waits for all kernels of a body.
pytestmark = pytest.mark.timeout(600)
KINDS = [("ant", "gymnasium"), ("ant", "isaac"), ("humanoid", "gymnasium"), ("humanoid", "isaac")]
CPU = torch.device("cpu")


def made(body: str, count: int, **options: object) -> WarpSimulator:
    simulator = make(f"warp:{body}", count, options)
    assert isinstance(simulator, WarpSimulator)
    return simulator


def actions(simulator: WarpSimulator, steps: int) -> Tensor:
    """Returns [steps, N, n]; the actions of a lane are the same for any number of lanes."""
    lanes = [torch.Generator().manual_seed(lane) for lane in range(simulator.count)]
    (high, *_) = simulator.action_space.high or ()
    shape = (steps, *simulator.action_space.shape)
    return torch.stack([torch.rand(shape, generator=lane) for lane in lanes], 1) * 2 * high - high


def rolled(simulator: WarpSimulator, steps: int, seed: int = 3) -> Tensor:
    """Returns [steps, N, size + 3]: the results of every lane."""
    simulator.reset(seed)
    rows = []
    for action in actions(simulator, steps):
        step = simulator.step(action)
        flags = torch.stack([step.reward, step.terminated.float(), step.truncated.float()], 1)
        rows.append(torch.cat([step.observation, flags], 1))
    return torch.stack(rows)


class Twins:
    """Simulations of MuJoCo Warp and of MuJoCo itself, in equal states and with equal controls."""

    def __init__(self, body: str, style: str, count: int) -> None:
        loaded = load_body(body, style)
        self.model = loaded.model
        self.physics = WarpPhysics(loaded, count, CPU, substeps=1)
        self.data = [mujoco.MjData(self.model) for _ in range(count)]
        self.generator = torch.Generator().manual_seed(1)
        fields = self.physics.fields
        fields.qpos.copy_(torch.tensor(loaded.qpos) + 0.05 * torch.rand(fields.qpos.shape, generator=self.generator))
        fields.qvel.zero_()
        fields.qacc_warmstart.zero_()
        self.meet()

    def meet(self) -> None:
        """Puts MuJoCo's simulations into the states of the lanes."""
        fields = self.physics.fields
        for lane, data in enumerate(self.data):
            for name in ("qpos", "qvel", "qacc_warmstart"):
                getattr(data, name)[:] = getattr(fields, name)[lane].numpy()

    def step(self) -> None:
        low, high = self.model.actuator_ctrlrange[0]
        fields = self.physics.fields
        fields.ctrl.copy_(torch.rand(fields.ctrl.shape, generator=self.generator) * (high - low) + low)
        self.physics.step()
        for lane, data in enumerate(self.data):
            data.ctrl[:] = fields.ctrl[lane].numpy()
            mujoco.mj_step(self.model, data)
            mujoco.mj_rnePostConstraint(self.model, data)

    def distance(self, name: str) -> float:
        theirs = np.stack([getattr(data, name) for data in self.data])
        return float(np.abs(theirs - getattr(self.physics.fields, name).numpy()).max())


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_the_physics_equals_mujocos(body: str, style: str) -> None:
    twins, contacts = Twins(body, style, 6), 0
    for _ in range(50):
        twins.meet()
        twins.step()
        assert twins.distance("qpos") < 1e-5
        assert twins.distance("qvel") < 1e-3
        # In newtons: a contact this light depends on the last bits of a distance.
        assert twins.distance("cfrc_ext") < 0.02 + 1e-3 * max(np.abs(data.cfrc_ext).max() for data in twins.data)
        contacts += sum(data.ncon for data in twins.data)
    assert contacts > 0


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_the_physics_stays_close_to_mujocos_for_some_steps(body: str, style: str) -> None:
    twins = Twins(body, style, 6)
    for _ in range(10):
        twins.step()
    assert twins.distance("qpos") < 1e-4
    assert twins.distance("qvel") < 1e-2


@pytest.mark.parametrize(("body", "task"), [("ant", "Ant-v5"), ("humanoid", "Humanoid-v5")])
def test_first_observations_equal_gymnasiums(body: str, task: str) -> None:
    simulator, environment = made(body, 3, max_episode_steps=2), gymnasium.make(task).unwrapped
    environment.reset(seed=0)

    def compare(observation: Tensor) -> None:
        for lane in range(3):
            state = (values[lane].double().numpy() for values in (fields.qpos, fields.qvel))
            environment.set_state(*state)
            np.testing.assert_allclose(observation[lane].numpy(), environment._get_obs(), rtol=1e-5, atol=1e-5)

    fields = simulator.physics.fields
    compare(simulator.reset(5))
    for number_of_step, action in enumerate(actions(simulator, 4)):
        step = simulator.step(action)
        assert step.truncated.tolist() == 3 * [number_of_step % 2 == 1]
        if step.truncated.all():
            compare(step.observation)
        else:
            # Lanes that continue observe the state of their final observation.
            assert torch.equal(step.observation, step.final_observation)


@pytest.mark.parametrize(("body", "task"), [("ant", "Ant-v5"), ("humanoid", "Humanoid-v5")])
def test_spaces_equal_gymnasiums(body: str, task: str) -> None:
    simulator, environment = made(body, 1), gymnasium.make(task)
    assert simulator.observation_space.shape == environment.observation_space.shape
    assert simulator.action_space.low == tuple(environment.action_space.low.tolist())
    assert simulator.action_space.high == tuple(environment.action_space.high.tolist())


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_the_results_of_a_lane_do_not_depend_on_other_lanes(body: str, style: str) -> None:
    options = {"style": style, "max_episode_steps": 15}
    few, many = rolled(made(body, 2, **options), 40), rolled(made(body, 5, **options), 40)
    assert few[:, :, -2:].sum() >= 2, "resets are tested only if episodes have ended"
    assert torch.equal(few, many[:, :2])


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_a_reset_removes_every_trace_of_earlier_steps(body: str, style: str) -> None:
    used, fresh = made(body, 3, style=style), made(body, 3, style=style)
    rolled(used, 30, seed=8)
    assert torch.equal(rolled(used, 30), rolled(fresh, 30))


@pytest.mark.parametrize("body", ["ant", "humanoid"])
def test_a_reset_changes_only_the_lanes_that_ended(body: str) -> None:
    simulator = made(body, 4, healthy_z_range=[-10, 10])
    alone, disturbed = rolled(simulator, 30)[:, [0, 2], :-2], []
    simulator.reset(3)
    high_up = torch.tensor(load_body(body, "gymnasium").qpos)
    high_up[2] = 20.0
    for action in actions(simulator, 30):
        simulator.set_state(torch.tensor([1, 3]), high_up.expand(2, -1), torch.zeros(2, len(high_up) - 1))
        step = simulator.step(action)
        assert step.terminated.tolist() == [False, True, False, True]
        assert (step.observation[1] != step.final_observation[1]).any()
        disturbed.append(torch.cat([step.observation, step.reward[:, None]], 1)[[0, 2]])
    assert torch.equal(torch.stack(disturbed), alone)


def test_contact_forces_are_cleared_at_a_reset() -> None:
    simulator = made("ant", 2, max_episode_steps=30)
    action = torch.ones(2, 8)
    for _ in range(29):
        simulator.step(action)
    step = simulator.step(action)
    assert step.truncated.all()
    assert step.final_observation[:, 27:].abs().sum() > 0
    assert step.observation[:, 27:].abs().sum() == 0


@pytest.mark.parametrize("style", ["gymnasium", "isaac"])
def test_every_lane_is_truncated_at_its_own_time_limit(style: str) -> None:
    floor = {"termination_height": -9.0} if style == "isaac" else {"terminate_when_unhealthy": False}
    simulator = made("ant", 2, style=style, max_episode_steps=13, **floor)
    still, cut = torch.zeros(2, 8), []
    for step_number in range(1, 19):
        step = simulator.step(still)
        assert not step.terminated.any()
        cut += [(step_number, lane) for lane in step.truncated.nonzero().flatten().tolist()]
        if step_number == 5:
            simulator.set_state(torch.tensor([1]), torch.tensor(load_body("ant", style).qpos)[None], torch.zeros(1, 14))
    assert cut == [(13, 0), (18, 1)]


def test_a_fall_in_the_last_step_terminates_and_does_not_truncate() -> None:
    simulator = made("ant", 2, max_episode_steps=1)
    fallen = torch.tensor(load_body("ant", "gymnasium").qpos)
    fallen[2] = 5.0
    simulator.set_state(torch.tensor([1]), fallen[None], torch.zeros(1, 14))
    step = simulator.step(torch.zeros(2, 8))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [True, False])


@pytest.mark.parametrize(
    ("body", "style", "number"), [*((*kind, math.nan) for kind in KINDS), ("ant", "isaac", math.inf), (*KINDS[0], 1e30)]
)
def test_a_diverged_lane_ends_alone_and_restarts(body: str, style: str, number: float) -> None:
    sound, simulator = made(body, 3, style=style), made(body, 3, style=style)
    alone = rolled(sound, 25)
    simulator.reset(3)
    for number_of_step, action in enumerate(actions(simulator, 25)):
        if number_of_step == 4:
            simulator.physics.fields.qvel[1, 8] = number
        step = simulator.step(action)
        assert torch.isfinite(step.observation).all()
        assert torch.isfinite(step.reward).all()
        assert torch.equal(step.observation[[0, 2]], alone[number_of_step, [0, 2], :-3])
        if number_of_step == 4:
            assert step.terminated[1]
            assert step.reward[1] == 0
            assert (step.final_observation[1] == 0).all()
            begun = step.observation[1].clone()
    assert simulator.report().metrics == {"diverged_episodes": 1.0}
    # As if the episode had ended normally.
    sound._noise.seed(3)
    sound._episode.fill_(1)
    sound._ended.fill_(True)
    sound._begin_episodes()
    assert torch.equal(sound._shown()[1], begun)
    simulator.reset(3)
    assert simulator.report().metrics == {"diverged_episodes": 0.0}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"nconmax": 1}, r"no room for (pairs that may touch in \d of 8 lanes|.*contacts in \d+).* 'nconmax' \(1\)"),
        ({"njmax": 4}, r"no room for constraint rows in \d.* of 8 lanes.* 'njmax' \(4\)"),
    ],
)
def test_contacts_and_constraints_beyond_capacity_are_reported(options: dict[str, object], line: str) -> None:
    simulator = made("ant", 8, **options)
    with pytest.raises(ResourceExhausted, match=line) as caught:
        rolled(simulator, 2 * Overflow.every_steps)
    assert "\n" not in caught.value.message
    for late in (simulator.report, lambda: simulator.reset(0)):
        with pytest.raises(ResourceExhausted, match="no room"):
            late()


def test_only_overflows_that_make_the_physics_wrong_are_reported() -> None:
    bits = torch.tensor([0, 1 << 9, 1 << 10], dtype=torch.int32)
    overflow = Overflow(bits, 25, 64)
    overflow.check()
    for bit in range(4):
        bits[1] = 1 << bit
        with pytest.raises(ResourceExhausted, match="in 1 of 3 lanes"):
            overflow.check()


def test_a_replay_equals_the_launched_kernels() -> None:
    body = load_body("ant", "gymnasium")
    one, other = (WarpPhysics(body, 4, CPU, substeps=3, kinematics=True) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for step, kinematics in ((one.step, one.compute_kinematics), (other.launch_step, other.launch_kinematics)):
        generator.manual_seed(0)
        fields = (one if step == one.step else other).fields
        fields.qpos.copy_(torch.tensor(body.qpos) + 0.1 * torch.rand(4, 15, generator=generator))
        fields.qpos[:, 2] -= 0.3
        fields.qvel.zero_()
        fields.qacc_warmstart.zero_()
        for _ in range(20):
            fields.ctrl.copy_(torch.rand(4, 8, generator=generator) * 2 - 1)
            step()
            kinematics()
    for name in ("qpos", "qvel", "cfrc_ext", "xpos", "cinert", "cvel"):
        assert torch.equal(getattr(one.fields, name), getattr(other.fields, name))
    assert one.fields.cfrc_ext.abs().sum() > 0


class Waits(TorchDispatchMode):
    """Collects operations for which the CPU has to wait for a GPU."""

    names = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().split("::")[1].split(".")[0]
        booleans = name in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in self.names or booleans:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_nothing_in_a_step_waits_for_a_device(body: str, style: str) -> None:
    simulator = made(body, 3, style=style, max_episode_steps=2)
    with Waits() as waits:
        for action in actions(simulator, 5):
            simulator.step(action)
    assert waits.seen == []
    with Waits() as waits:
        simulator.report()
    assert waits.seen == ["_local_scalar_dense"]


def test_a_function_is_run_before_its_capture_on_a_gpu_and_replayed_after(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            happened.append("wait")

    class Graph:
        def replay(self) -> None:
            happened.append("replay")

    @contextlib.contextmanager
    def within(*_: object, capture_error_mode: str) -> Iterator[None]:
        happened.append("[")
        yield
        happened.append("]")

    for name, fake in {
        "device": lambda device: contextlib.nullcontext(),
        "Stream": lambda device: Stream(),
        "current_stream": lambda device: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": Graph,
        "graph": within,
        "graph_pool_handle": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    replay = as_cuda_graph(lambda: happened.append("run"), torch.device("cuda"))
    assert happened == ["wait", "run", "run", "run", "wait", "[", "run", "]"]
    replay()
    assert happened[-1] == "replay"


def test_nothing_is_written_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    # A new size, so that its kernels are loaded, and possibly compiled, now.
    made("ant", 1, njmax=4).step(torch.zeros(1, 8))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("package", ["mujoco_warp", "warp", "mujoco"])
def test_a_package_that_is_not_installed_is_named_with_an_install_command(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("simulators.warp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unimplemented, match=f"warp:ant: package '{package}' is not installed: pip install mujoco-warp"):
        make("warp:ant", 1)


def test_a_missing_model_file_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(warp_models, "_folder", lambda package: tmp_path)
    with pytest.raises(Unimplemented, match=r"there is no .*humanoid\.xml: install the releases") as caught:
        made("humanoid", 1, style="isaac")
    assert "\n" not in caught.value.message


def test_overflow_bits_are_read_from_completed_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host reads what a copy has transferred, and only after it has completed."""
    overflow = Overflow(torch.tensor([1], dtype=torch.int32), 25, 64)

    class Event:
        arrived = False

        def query(self) -> bool:
            return self.arrived

        def record(self, stream: object) -> None:
            self.arrived = False

    event = Event()
    monkeypatch.setattr(overflow, "_copied", event)
    monkeypatch.setattr(warp_engine.torch.cuda, "current_stream", lambda device: None)
    for _ in range(3 * Overflow.every_steps - 1):
        overflow.poll()
    event.arrived = True
    with pytest.raises(ResourceExhausted, match="constraint rows in 1 of 1 lanes"):
        overflow.poll()


@pytest.mark.parametrize("name", ["ant", "humanoid"])
def test_steps_that_another_graph_can_contain_equal_those_of_the_simulators_own_graphs(name: str) -> None:
    own, other = (make(f"warp:{name}", 3, {"max_episode_steps": 4}) for _ in range(2))
    assert isinstance(other, Capturable)
    launched = other.capturable
    assert isinstance(launched, Polled)
    assert torch.equal(own.reset(5), launched.reset(5))
    generator, ended = torch.Generator().manual_seed(1), 0
    for _ in range(6):
        action = 2 * torch.rand((3, *own.action_space.shape), generator=generator) - 1
        expected, found = own.step(action), launched.step(action)
        launched.poll()
        for field in ("observation", "reward", "terminated", "truncated", "final_observation"):
            assert torch.equal(getattr(expected, field), getattr(found, field)), field
        ended += int((found.terminated | found.truncated).sum())
    assert ended >= 3


@pytest.mark.parametrize("capturing", [False, True])
def test_kernels_are_launched_on_the_stream_that_captures(monkeypatch: pytest.MonkeyPatch, capturing: bool) -> None:
    happened = list[str]()

    @contextlib.contextmanager
    def scope(name: str) -> Iterator[None]:
        happened.append(name)
        yield
        happened.append(f"end of {name}")

    physics = object.__new__(WarpPhysics)
    physics._device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(warp_engine.warp, "stream_from_torch", lambda stream: f"Warp's {stream}")
    monkeypatch.setattr(warp_engine.warp, "ScopedStream", lambda stream, sync_enter: scope(f"{stream}, {sync_enter}"))
    monkeypatch.setattr(
        warp_engine.warp, "ScopedCapture", lambda stream, external: scope(f"capture of {stream}, {external}")
    )
    with physics.launching():
        happened.append("launches")
    stream, capture = "Warp's stream of cuda:1, False", "capture of Warp's stream of cuda:1, True"
    inner = [capture, "launches", f"end of {capture}"] if capturing else ["launches"]
    assert happened == [stream, *inner, f"end of {stream}"]
