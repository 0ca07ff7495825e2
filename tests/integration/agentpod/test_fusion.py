"""Tests fusion between processes: they arrive at a leader, form groups over gloo, average, are killed and join."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import connection
from typing import Any

import pytest
import torch
from members import Member, everywhere

from agentpod.algorithms.flat_adam import FlatAdam
from agentpod.algorithms.fusible import Fusible
from agentpod.fusion.averaging import StateAverager
from agentpod.fusion.rounds import Arrival, FusionOptions, FusionRounds, Membership, RoundReport
from agentpod.models.normalizer import RunningMoments, SharedMoments
from podrace.tensor_transport.group import Group, MemberLost
from podrace.tensor_transport.group_store import GroupStore

SIZE = 5
SOON_SECONDS = 5.0
TIMEOUT_SECONDS = 20.0
"""Longer than any test waits: a test that finishes sooner did not wait for a timeout."""


class Leader:
    """Answers JoinFusion and CommitFusion over pipes, and detects when a learner's process exits."""

    def __init__(self, learners: int, options: FusionOptions) -> None:
        self.rounds = FusionRounds(learners, options)
        self.store = GroupStore()
        self._listener = connection.Listener(family="AF_UNIX")
        self.address = str(self._listener.address)
        self._members: dict[connection.Connection, tuple[int, str]] = {}
        self._waiting: dict[connection.Connection, Callable[[], Any]] = {}
        self._closed, self._changed = threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def admit(self, member: tuple[int, str]) -> None:
        self._members[self._listener.accept()] = member

    def wait_for_arrival(self, index: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: index in self.rounds.state.arrived, TIMEOUT_SECONDS)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._listener.close()
        self.store.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            for ready in connection.wait(list(self._members), timeout=0.01):
                assert isinstance(ready, connection.Connection)
                self._receive(ready)
            self.rounds.advance(time.monotonic())
            with self._changed:
                self._changed.notify_all()
            for asker, ask in list(self._waiting.items()):
                answer = ask()
                if answer is not None:
                    del self._waiting[asker]
                    with suppress(BrokenPipeError):
                        asker.send(answer)

    def _receive(self, speaker: connection.Connection) -> None:
        member = self._members[speaker]
        try:
            verb, (epoch, round_number), rest = speaker.recv()
        except (EOFError, ConnectionResetError):
            del self._members[speaker]
            self._waiting.pop(speaker, None)
            self.rounds.leave(member)
            return
        if verb == "join":
            self.rounds.arrive(Arrival(*member, round_number, epoch, rest, time.monotonic()))
            self._waiting[speaker] = lambda: self.rounds.membership(member)
        else:
            self.rounds.report(RoundReport(member, epoch, round_number, *rest, time.monotonic()))
            self._waiting[speaker] = lambda: self.rounds.outcome(epoch, round_number)


class Learner:
    """One learner in its own process, with a state that is unique to its index."""

    def __init__(self, index: int, incarnation: str, leader: str, store: str, options: FusionOptions) -> None:
        self.me, self._store = (index, incarnation), store
        self._leader = connection.Client(leader)
        self.parameters, self.gradient = draw(index, SIZE), torch.zeros(SIZE)
        self.adam = FlatAdam(self.parameters, self.gradient, learning_rate=0.05, epsilon=1e-8, maximum_norm=0.0)
        self.target, self.rate = draw(index + 10, SIZE), torch.tensor(1e-3 * (1 + index), dtype=torch.float64)
        self.statistics = SharedMoments((2,))
        adam = self.adam.tensors()
        fusible = Fusible(
            {"actor": self.parameters},
            {"actor": self.target},
            {"exp_avg": adam["exp_avg"], "exp_avg_sq": adam["exp_avg_sq"]},
            {"step": adam["step"]},
            {"rate": self.rate},
            {"observation": self.statistics},
        )
        self.fusion = StateAverager(fusible, options)
        self.adam.reduce = self.fusion.reduce
        self.group: Group | None = None
        self.epoch = self.applied_round = 0
        self.digest = ""

    def arrive(self) -> Membership:
        """Waits until the round forms, and joins its group if that is new."""
        self._leader.send(("join", (self.epoch, self.applied_round), 100))
        membership: Membership = self._leader.recv()
        rank, size = membership.members.index(self.me), len(membership.members)
        if membership.epoch != self.epoch:
            prefix = f"epoch-{membership.epoch}"
            self.group = Group.join(self._store, prefix, rank, size, "cpu", timeout_seconds=TIMEOUT_SECONDS)
            self.fusion.group, self.epoch = self.group, membership.epoch
        if membership.joiners:
            self.fusion.broadcast_leader_state(joining=rank in membership.joiners)
        return membership

    def finish(self, membership: Membership) -> bool:
        """Averages, reports, and applies the result if it is committed."""
        failure = ""
        try:
            scratch = self.fusion.prepare(joiners=membership.joiners)
            self.digest = scratch.digest()
        except MemberLost as error:
            failure = error.message
        self._leader.send(("commit", (membership.epoch, membership.round), (self.digest, failure)))
        outcome = self._leader.recv()
        if outcome.committed:
            self.fusion.apply(scratch)
            self.applied_round = membership.round
        else:
            self.epoch = 0
        return bool(outcome.committed)

    def state(self) -> dict[str, torch.Tensor]:
        live = {"parameters": self.parameters, "target": self.target, "rate": self.rate, **self.adam.tensors()}
        live |= {f"common.{name}": tensor for name, tensor in vars(self.statistics.common).items()}
        return {name: tensor.clone() for name, tensor in live.items()}


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- actions of learners ---------------------------------------------------------------------------------------------


def begin(state: Any, *arguments: Any) -> None:
    state.learner = Learner(*arguments)


def fuse(state: Any, rank: int, changes: bool = True) -> tuple[dict[str, torch.Tensor], str, dict[str, torch.Tensor]]:
    """Changes its state and takes part in a round; returns the state before, the digest and the state after."""
    learner: Learner = state.learner
    if changes:
        for number, tensor in enumerate((learner.parameters, learner.target)):
            tensor.add_(draw(100 * learner.applied_round + 10 * number + rank, SIZE), alpha=0.1)
        learner.statistics.add(RunningMoments.of(draw(rank, 5 + rank, 2)))
    before = learner.state()
    assert learner.finish(learner.arrive())
    return before, learner.digest, learner.state()


def fuse_until_committed(state: Any, rank: int) -> tuple[list[float], dict[str, torch.Tensor], Membership]:
    """Takes part in rounds until one is committed; returns the duration of each, the state and the membership."""
    learner: Learner = state.learner
    durations: list[float] = []
    while True:
        membership, began = learner.arrive(), time.monotonic()
        committed = learner.finish(membership)
        durations.append(time.monotonic() - began)
        if committed:
            return durations, learner.state(), membership


def arrive_and_stop(state: Any) -> None:
    state.learner.arrive()


def share_gradients(state: Any, rank: int, size: int, steps: int) -> int:
    """Minimizes the mean squared error over its part of a batch; returns how many steps it made."""
    learner: Learner = state.learner
    inputs, outputs = draw(50, 16, SIZE), draw(51, 16)
    mine = slice(rank * 16 // size, (rank + 1) * 16 // size)
    for step in range(steps):
        error = inputs[mine] @ learner.parameters - outputs[mine]
        learner.gradient.copy_(2.0 / len(error) * inputs[mine].T @ error)
        try:
            learner.adam.step()
        except MemberLost:
            learner.epoch = 0
            return step
    return steps


def state_of(state: Any, rank: int) -> dict[str, torch.Tensor]:
    return state.learner.state()


# --- the mesh --------------------------------------------------------------------------------------------------------


class Mesh:
    """A leader and its learners."""

    def __init__(self, learners: int, mode: str) -> None:
        self.options = FusionOptions(mode=mode, straggler_seconds=TIMEOUT_SECONDS, report_seconds=TIMEOUT_SECONDS)
        self.leader = Leader(learners, self.options)
        self.members: list[Member] = []
        for index in range(learners):
            self.add(index, "first")

    def add(self, index: int, incarnation: str) -> Member:
        member = Member()
        self.members.append(member)
        member.send(begin, index, incarnation, self.leader.address, self.leader.store.address, self.options)
        self.leader.admit((index, incarnation))
        member.result()
        return member

    def close(self) -> None:
        for member in self.members:
            member.kill()
        self.leader.close()


@pytest.fixture
def mesh() -> Iterator[Callable[..., Mesh]]:
    made: list[Mesh] = []

    def make(learners: int, mode: str) -> Mesh:
        made.append(Mesh(learners, mode))
        return made[-1]

    yield make
    for one in made:
        one.close()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, but: tuple[str, ...] = ()) -> None:
    for name in one.keys() - set(but):
        assert torch.equal(one[name], other[name]), name


# --- tests -----------------------------------------------------------------------------------------------------------


def test_learners_compute_the_float64_mean_bitwise_equally(mesh: Callable[..., Mesh]) -> None:
    members = mesh(3, "average").members
    everywhere(members, fuse)
    results = everywhere(members, fuse)
    assert len({digest for _, digest, _ in results}) == 1
    for _, _, after in results:
        assert_equal(after, results[0][2])
        for name in ("parameters", "target", "exp_avg"):
            mean = sum(before[name].double() for before, _, _ in results) / 3
            assert torch.equal(after[name], mean.float())
    samples = RunningMoments.of(torch.cat([draw(rank, 5 + rank, 2) for rank in range(3)] * 2))
    common = results[0][2]
    assert common["common.count"] == samples.count
    torch.testing.assert_close(common["common.squared_deviation"], samples.squared_deviation)


def test_after_a_member_is_killed_in_a_collective_the_others_finish_the_next_round(mesh: Callable[..., Mesh]) -> None:
    fused = mesh(3, "average")
    leader, other, victim = fused.members
    everywhere(fused.members, fuse)
    leader.send(fuse_until_committed, 0)
    other.send(fuse_until_committed, 1)
    victim.send(arrive_and_stop).result()
    victim.kill()
    for member in (leader, other):
        durations, _, membership = member.result()
        assert len(durations) == 2
        assert sum(durations) < SOON_SECONDS
        assert membership.members == ((0, "first"), (1, "first"))
        assert not membership.joiners
    assert fused.leader.rounds.state.environment_steps == 100 * (3 + 2)


@pytest.mark.parametrize("mode", ["average", "diloco"])
def test_a_restarted_learner_gets_the_state_of_the_leader(mesh: Callable[..., Mesh], mode: str) -> None:
    fused = mesh(2, mode)
    leader, other = fused.members
    everywhere([leader, other], fuse)
    leader.send(share_gradients, 0, 1, 3).result()
    other.kill()
    again = fused.add(1, "second").send(fuse, 1, False)
    fused.leader.wait_for_arrival(1)
    leader.send(fuse, 0, False)
    _, _, joined = again.result()
    before, _, after = leader.result()
    # With two equal members, the mean is the leader's state, from which the outer step starts.
    assert_equal(joined, after)
    assert_equal(after, before, but=("parameters",) if mode == "diloco" else ())
    assert before["step"] == 3


def test_diloco_applies_its_outer_optimizer(mesh: Callable[..., Mesh]) -> None:
    members = mesh(2, "diloco").members
    results = [everywhere(members, fuse, False)]
    anchor, velocity = results[0][0][2]["parameters"].double(), torch.zeros(SIZE, dtype=torch.float64)
    for _ in range(3):
        results.append(everywhere(members, fuse))
        (first, digest, after), (second, other_digest, other) = results[-1]
        delta = anchor - (first["parameters"].double() + second["parameters"].double()) / 2
        velocity = 0.9 * velocity + delta
        anchor = anchor - 0.7 * (delta + 0.9 * velocity)
        torch.testing.assert_close(after["parameters"].double(), anchor, rtol=1e-6, atol=1e-6)
        assert_equal(after, other)
        assert digest == other_digest


def test_shared_gradients_over_half_batches_equal_one_learner_with_the_whole_batch(mesh: Callable[..., Mesh]) -> None:
    together, alone = mesh(2, "allreduce").members, mesh(1, "allreduce").members
    everywhere(together, fuse, False)
    everywhere(alone, fuse, False)
    everywhere(together, share_gradients, 2, 50)
    everywhere(alone, share_gradients, 1, 50)
    (_, digest, first), (_, other_digest, second) = everywhere(together, fuse, False)
    whole = everywhere(alone, state_of)[0]
    assert digest == other_digest
    assert_equal(first, second)
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(first[name], whole[name], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole["parameters"], draw(0, SIZE), atol=0.1)


def test_in_allreduce_the_others_continue_from_the_leaders_state_after_a_member_is_killed(
    mesh: Callable[..., Mesh],
) -> None:
    fused = mesh(3, "allreduce")
    leader, other, victim = fused.members
    everywhere(fused.members, fuse, False)
    everywhere(fused.members, share_gradients, 3, 5)
    leader.send(share_gradients, 0, 3, 5)
    other.send(share_gradients, 1, 3, 5)
    victim.kill()
    assert (leader.result(), other.result()) == (0, 0)
    (durations, first, membership), (_, second, _) = everywhere([leader, other], fuse_until_committed)
    assert len(durations) == 1
    assert membership.joiners == {1}
    assert_equal(first, second)
    assert first["step"] == 5
