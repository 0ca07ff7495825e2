import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from podrace.errors import FailedPrecondition, InvalidArgument
from simulators import Simulator, Step, make
from simulators.classic import ClassicOnDevice
from simulators.classic_tasks import CartPole, Pendulum
from simulators.cuda_graph import WARM_UP_STEPS, CudaGraphSimulator, between_graphs, record_graph
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions

COUNT = 6


class Tape:
    """Replaces a CUDA graph on the CPU: warms up, records, and replays by calling the function."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.played = 0

    def __call__(
        self, function: Callable[[], Step], generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Callable[[], None], Step]:
        self.generators += generators
        for _ in range(WARM_UP_STEPS):
            step = function()

        def replay() -> None:
            self.played += 1
            function()

        return replay, step


def stocks(device: str = "cpu", **options: object) -> tuple[Simulator, torch.Generator]:
    chosen = StockOptions(train_end="2005-01-15", maximum_shares=1000, **options)  # type: ignore[arg-type]
    simulator = StockSimulator(load_market(chosen, device), chosen, COUNT)
    return simulator, simulator.generator


def folds(device: str = "cpu") -> tuple[Simulator, torch.Generator]:
    chosen = StockOptions(split="validation", folds=3, episode_days=20, maximum_shares=1000)
    simulator = StockSimulator(load_market(chosen, device), chosen, COUNT)
    return simulator, simulator.generator


def cartpole(device: str = "cpu") -> tuple[Simulator, torch.Generator]:
    simulator = ClassicOnDevice(CartPole(), COUNT, 20, device)
    return simulator, simulator.generator


def pendulum(device: str = "cpu") -> tuple[Simulator, torch.Generator]:
    simulator = ClassicOnDevice(Pendulum(), COUNT, 20, device)
    return simulator, simulator.generator


def windows(device: str = "cpu") -> tuple[Simulator, torch.Generator]:
    return stocks(device, episode_days=12, staggered=True)


MAKERS: dict[str, Callable[..., tuple[Simulator, torch.Generator]]] = {
    "stocks": stocks,
    "stocks, staggered windows": windows,
    "stocks, validation folds": folds,
    "cartpole": cartpole,
    "pendulum": pendulum,
}


def random_actions(simulator: Simulator, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    space = simulator.action_space
    if space.kind == "discrete":
        return [torch.randint(space.n, (COUNT,), generator=generator) for _ in range(steps)]
    return [2 * torch.rand((COUNT, *space.shape), generator=generator) - 1 for _ in range(steps)]


def same_steps(one: Simulator, other: Simulator, device: str = "cpu") -> None:
    assert torch.equal(one.reset(7), other.reset(7))
    ended = 0
    for action in random_actions(one, 90):
        first, second = one.step(action.to(device)), other.step(action.to(device))
        over = first.terminated | first.truncated
        for name in ("observation", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(first, name), getattr(second, name)), name
        assert torch.equal(first.final_observation[over], second.final_observation[over])
        ended += int(over.sum())
    assert ended > COUNT


@pytest.mark.parametrize("name", MAKERS)
def test_replayed_steps_equal_plain_steps(name: str) -> None:
    plain, generator = MAKERS[name]()
    inner, generator = MAKERS[name]()
    tape = Tape()
    same_steps(plain, CudaGraphSimulator(inner, [generator], tape))
    assert tape.generators == [generator]
    assert tape.played == 90


@pytest.mark.parametrize("name", MAKERS)
def test_a_new_simulator_starts_episodes_with_seed_zero(name: str) -> None:
    plain, _ = MAKERS[name]()
    inner, generator = MAKERS[name]()
    captured = CudaGraphSimulator(inner, [generator], Tape())
    plain.reset(0)
    for action in random_actions(plain, 5):
        assert torch.equal(plain.step(action).observation, captured.step(action).observation)


def test_an_action_is_copied_so_the_callers_tensor_may_be_freed() -> None:
    plain, _ = stocks()
    inner, generator = stocks()
    captured = CudaGraphSimulator(inner, [generator], Tape())
    action = torch.ones(COUNT, 4)
    captured.step(action)
    plain.step(torch.ones(COUNT, 4))
    action.zero_()
    assert torch.equal(plain.step(torch.ones(COUNT, 4)).reward, captured.step(torch.ones(COUNT, 4)).reward)


def test_the_report_is_that_of_the_simulator() -> None:
    inner, generator = stocks()
    captured = CudaGraphSimulator(inner, [generator], Tape())
    for action in random_actions(captured, 90):
        captured.step(action)
    assert captured.report() == inner.report()
    captured.close()


@pytest.mark.gpu
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("index", [0, 1])
def test_a_graph_computes_the_same_as_the_steps(name: str, index: int) -> None:
    if torch.cuda.device_count() <= index:
        pytest.skip(f"needs {index + 1} GPUs")
    device = f"cuda:{index}"
    plain, _ = MAKERS[name](device)
    inner, generator = MAKERS[name](device)
    captured = CudaGraphSimulator(inner, [generator])
    # Episodes end at different moments; only the order of random draws could differ, and it does not.
    same_steps(plain, captured, device)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MAKERS)
def test_a_step_never_synchronizes_with_the_device(name: str) -> None:
    simulator, _ = MAKERS[name]("cuda:0")
    moves = [action.to("cuda:0") for action in random_actions(simulator, 40)]
    simulator.step(moves[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for action in moves:
            simulator.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_is_refused_on_the_cpu() -> None:
    with pytest.raises(InvalidArgument, match="option 'captured' needs a CUDA device"):
        make("stocks", 1, {"captured": True})


@pytest.mark.gpu
def test_an_option_replays_the_steps_of_stocks() -> None:
    captured = make("stocks", COUNT, {"captured": True, "train_end": "2005-01-15"}, "cuda:0")
    assert isinstance(captured, CudaGraphSimulator)
    same_steps(make("stocks", COUNT, {"train_end": "2005-01-15"}, "cuda:0"), captured, "cuda:0")


@pytest.mark.gpu
def test_a_step_that_synchronizes_cannot_be_captured() -> None:
    simulator, generator = stocks("cuda:0")
    original = simulator.step

    def synchronizing(action: Tensor) -> Step:
        step = original(action)
        assert float(step.reward.sum()) < 1e9
        return step

    simulator.step = synchronizing  # type: ignore[method-assign]
    with pytest.raises(FailedPrecondition, match="cannot be captured"):
        CudaGraphSimulator(simulator, [generator])


class FakeCuda:
    """Replaces what `record_graph` uses of torch.cuda, and lists what happened on which current device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, warning: str = "") -> None:
        self.current, self.happened, self._warning = "cuda:0", list[str](), warning
        self.graphs, self.empty, self.capturing, self.invalid = 0, set[int](), False, False
        self.stream, self.in_pool = "stream of cuda:0", list[str]()
        """The current stream; pools that torch allocates from, as long as captures are under way."""
        replaced: dict[str, Any] = {
            "device": self._device,
            "Stream": lambda device: self._stream(f"side of {device}", device.index),
            "current_stream": lambda device: self._stream(f"stream of {device}", device.index),
            "stream": self._use,
            "CUDAGraph": lambda: self._new_graph(),
            "graph": self._graph,
            "graph_pool_handle": lambda: "one pool",
        }
        for name, fake in replaced.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end_allocation, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *_: self.note("pool released"), raising=False)

    def note(self, what: str) -> None:
        self.happened.append(f"{what} on {self.current}")

    def _stream(self, name: str, index: int) -> Any:
        return SimpleNamespace(
            name=name,
            device_index=index,
            wait_stream=lambda other: self.happened.append(f"{name} waits for {other.name}"),
        )

    @contextlib.contextmanager
    def _use(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream.name
        try:
            yield
        finally:
            self.stream = before

    def _end_allocation(self, index: int, pool: str) -> None:
        if pool not in self.in_pool:
            raise RuntimeError("not currently recording to this pool")
        self.in_pool.remove(pool)

    @contextlib.contextmanager
    def _device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, str(device)
        try:
            yield
        finally:
            self.current = before

    def _new_graph(self) -> Any:
        self.graphs += 1
        number = self.graphs
        return SimpleNamespace(number=number, replay=lambda: self.note(f"replay {number}"))

    @contextlib.contextmanager
    def _graph(self, graph: Any, pool: str, stream: Any, *, capture_error_mode: str) -> Iterator[None]:
        self.note(f"{capture_error_mode} capture {graph.number} in {pool} by {stream.name}")
        # As torch does: the current stream and the allocation of memory are as before only if the capture succeeds.
        before, self.stream, self.capturing = self.stream, stream.name, True
        self.in_pool.append(pool)
        yield
        self.capturing = False
        if self.invalid:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.stream = before
        self.in_pool.remove(pool)
        if graph.number in self.empty:
            warnings.warn("The CUDA Graph is empty. This usually means ...", stacklevel=1)
        if self._warning:
            warnings.warn(self._warning, stacklevel=1)


def test_warm_up_capture_and_replay_run_on_the_device_of_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    replay, result = record_graph(lambda: cuda.note("step") or 7, [], torch.device("cuda", 1))
    assert result == 7
    assert cuda.current == "cuda:0"
    assert cuda.happened == [
        "side of cuda:1 waits for stream of cuda:1",
        *["step on cuda:1"] * WARM_UP_STEPS,
        "stream of cuda:1 waits for side of cuda:1",
        "thread_local capture 1 in one pool by side of cuda:1 on cuda:1",
        "step on cuda:1",
    ]
    cuda.happened.clear()
    replay()
    assert cuda.happened == ["replay 1 on cuda:1"]


def test_an_empty_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, warning="The CUDA Graph is empty. This usually means that the graph was attempted to be ...")
    with pytest.raises(FailedPrecondition, match="cannot be captured as a CUDA graph: it launched nothing on cuda:1"):
        record_graph(lambda: None, [], torch.device("cuda", 1))


def test_other_warnings_of_a_capture_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, warning="something else")
    record_graph(lambda: None, [], torch.device("cuda", 1))


def test_an_action_runs_between_two_graphs_at_every_replay_and_never_while_they_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(monkeypatch)
    # The second action directly follows the first one, so there is no graph between them.
    cuda.empty = {2}

    def step() -> None:
        cuda.note("first half")
        between_graphs(lambda: cuda.note("average"))
        between_graphs(lambda: cuda.note("again"))
        cuda.note("second half")

    replay, _ = record_graph(step, [], torch.device("cuda", 1))
    assert not any(line.startswith(("average", "again")) for line in cuda.happened)
    captures = [line for line in cuda.happened if "capture" in line]
    assert [line.partition(" in ")[2] for line in captures] == ["one pool by side of cuda:1 on cuda:1"] * 3
    cuda.happened.clear()
    replay()
    assert cuda.happened == [f"{what} on cuda:1" for what in ("replay 1", "average", "again", "replay 3")]
    # Eagerly, actions run where they are.
    cuda.happened.clear()
    step()
    assert [line.partition(" on ")[0] for line in cuda.happened] == ["first half", "average", "again", "second half"]


def test_an_error_between_graphs_ends_the_capture_and_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)

    def step() -> None:
        between_graphs(lambda: None)
        if cuda.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(FailedPrecondition, match="operation not permitted"):
        record_graph(step, [], torch.device("cuda", 1))
    between_graphs(lambda: cuda.note("average"))
    assert cuda.happened[-1] == "average on cuda:0"


@pytest.mark.parametrize("index", [0, 1])
def test_each_device_is_captured_on_a_separate_stream(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    cuda = FakeCuda(monkeypatch)
    record_graph(lambda: None, [], torch.device("cuda", 1 - index))
    cuda.happened.clear()
    record_graph(lambda: None, [], torch.device("cuda", index))
    (capture,) = (line for line in cuda.happened if "capture" in line)
    assert capture.endswith(f"by side of cuda:{index} on cuda:{index}")


def test_after_a_failed_capture_the_thread_computes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)

    def step() -> None:
        if cuda.capturing:
            cuda.invalid = True
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(FailedPrecondition, match="operation not permitted"):
        record_graph(step, [], torch.device("cuda", 1))
    assert cuda.stream == "stream of cuda:0", "later work is not put on the stream of the capture"
    assert cuda.in_pool == [], "torch may free memory again"
    assert cuda.happened[-1] == "pool released on cuda:1"
