"""Tests the averaging of a fusion round; the members are threads that meet at a barrier."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from thread_group import together

from agentpod.algorithms.fusible import Fusible
from agentpod.fusion.averaging import PendingAverage, StateAverager, geometric_mean, outer_step
from agentpod.fusion.rounds import MODES, FusionOptions
from agentpod.liveness.activity import WARM_UP_TICKS, Activity
from agentpod.models.normalizer import RunningMoments, SharedMoments
from podrace.errors import FailedPrecondition, PodraceError
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tensor_transport.group import Group, MemberLost

LEARNERS = 3


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_fusible(seed: int) -> Fusible:
    """Returns the state of two networks, whose numbers are unique to the learner `seed`."""
    statistics = {"observation": SharedMoments((2,)), "return": SharedMoments(())}
    statistics["observation"].add(RunningMoments.of(draw(seed + 60, 10 + seed, 2)))
    statistics["return"].add(RunningMoments.of(draw(seed + 70, 20 + seed)))
    return Fusible(
        parameters={"actor": draw(seed, 5), "log_temperature": draw(seed + 10, 1)},
        targets={"critic": draw(seed + 20, 2, 3)},
        moments={"exp_avg": draw(seed + 30, 5), "exp_avg_sq": draw(seed + 40, 5).square()},
        counts={"step": torch.tensor(float(100 + seed))},
        rates={"rate": torch.tensor(1e-3 * 2.0**seed, dtype=torch.float64)},
        statistics=statistics,
    )


def everything(fusible: Fusible) -> dict[str, torch.Tensor]:
    """Returns copies of the whole state."""
    kinds = ("parameters", "targets", "moments", "counts", "rates")
    tensors = {f"{kind}.{name}": tensor for kind in kinds for name, tensor in getattr(fusible, kind).items()}
    for name, held in fusible.statistics.items():
        tensors |= held.state_dict(f"statistics.{name}")
    return {name: tensor.clone() for name, tensor in tensors.items()}


@dataclass
class Learners:
    """Fusible states and averagers of several learners."""

    fusibles: list[Fusible]
    fusions: list[StateAverager]

    def prepare(self) -> list[PendingAverage]:
        return together(_prepare, self.fusions)

    def round(self) -> list[PendingAverage]:
        scratches = self.prepare()
        for fusion, scratch in zip(self.fusions, scratches, strict=True):
            fusion.apply(scratch)
        return scratches

    def states(self) -> list[dict[str, torch.Tensor]]:
        return [everything(fusible) for fusible in self.fusibles]


def _prepare(group: Group, fusion: StateAverager) -> PendingAverage:
    fusion.group = group
    return fusion.prepare()


def _welcome(group: Group, fusion: StateAverager, joining: bool) -> None:
    fusion.group = group
    fusion.broadcast_leader_state(joining=joining)


def learners(mode: str = "average", seeds: tuple[int, ...] = (0, 1, 2), **options: float) -> Learners:
    fusibles = [make_fusible(seed) for seed in seeds]
    return Learners(fusibles, [StateAverager(fusible, FusionOptions(mode=mode, **options)) for fusible in fusibles])


def apart(mode: str, **options: float) -> Learners:
    """Returns learners that started from the same state and have diverged."""
    fused = learners(mode, **options)
    together(_welcome, fused.fusions, [False, True, True])
    for rank, fusible in enumerate(fused.fusibles):
        for tensor in (*fusible.parameters.values(), *fusible.targets.values(), *fusible.moments.values()):
            tensor.add_(0.1 * draw(rank, *tensor.shape))
        fusible.counts["step"].add_(rank)
    return fused


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, but: tuple[str, ...] = ()) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if not name.startswith(but):
            assert torch.equal(tensor, other[name]), name


def mean_of(states: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    total = sum((state[name].double() for state in states), torch.zeros((), dtype=torch.float64))
    return (total / len(states)).float()


# --- average ---------------------------------------------------------------------------------------------------------


def test_each_kind_of_state_is_averaged_by_its_rule() -> None:
    fused = learners()
    before = fused.states()
    fused.round()
    for after in fused.states():
        for name in after:
            if name.startswith(("parameters", "targets", "moments")):
                assert torch.equal(after[name], mean_of(before, name)), name
        assert after["counts.step"] == 102.0
        # The geometric mean of 0.001, 0.002 and 0.004.
        assert float(after["rates.rate"]) == pytest.approx(2e-3, rel=1e-7)


def test_after_an_average_all_learners_are_bitwise_equal() -> None:
    fused = learners()
    scratches = fused.round()
    assert len({scratch.digest() for scratch in scratches}) == 1
    assert_equal(fused.states()[0], fused.states()[1])
    assert_equal(fused.states()[0], fused.states()[2])


def test_averaging_equal_learners_changes_only_statistics() -> None:
    fused = learners(seeds=(5, 5, 5))
    before = fused.states()[0]
    fused.round()
    assert_equal(fused.states()[0], before, but=("statistics",))


def test_averaging_one_learner_changes_nothing() -> None:
    fused = learners(seeds=(5,))
    before, total = fused.states()[0], fused.fusibles[0].statistics["observation"].total
    fused.round()
    assert_equal(fused.states()[0], before, but=("statistics",))
    assert torch.equal(fused.fusibles[0].statistics["observation"].common.mean, total.mean)


@pytest.mark.parametrize("mode", MODES)
def test_a_discarded_result_changes_nothing(mode: str) -> None:
    fused = learners(mode)
    before, outer = fused.states(), [fusion.anchor.clone() for fusion in fused.fusions]
    fused.prepare()
    for after, earlier in zip(fused.states(), before, strict=True):
        assert_equal(after, earlier)
    assert all(torch.equal(fusion.anchor, anchor) for fusion, anchor in zip(fused.fusions, outer, strict=True))
    assert all(not fusion.velocity.any() for fusion in fused.fusions)


def test_a_digest_depends_on_every_bit() -> None:
    single, double = draw(0, 4), draw(1, 3).double()
    digest = PendingAverage(single, double).digest()
    assert PendingAverage(single.clone(), double.clone()).digest() == digest
    for tensor in (single, double):
        changed = tensor.clone()
        changed[-1] = torch.nextafter(changed[-1], torch.tensor(torch.inf, dtype=tensor.dtype))
        other = PendingAverage(changed, double) if tensor is single else PendingAverage(single, changed)
        assert other.digest() != digest


def _prepare_or_fail(group: Group, fusion: StateAverager) -> type | None:
    try:
        _prepare(group, fusion)
    except PodraceError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "other",
    [
        StateAverager(Fusible({"actor": draw(0, 5)}), FusionOptions(mode="diloco")),
        StateAverager(Fusible({"critic": draw(0, 5)}), FusionOptions()),
        StateAverager(Fusible({"actor": draw(0, 6)}), FusionOptions()),
        StateAverager(Fusible({"actor": draw(0, 5)}, {"critic": draw(0, 1)}), FusionOptions()),
        StateAverager(Fusible({"actor": draw(0, 5)}, statistics={"observation": SharedMoments((2,))}), FusionOptions()),
    ],
    ids=["mode", "name", "shape", "target", "statistics"],
)
def test_a_learner_with_another_layout_than_the_leader_is_refused_before_averaging(
    other: StateAverager,
) -> None:
    alike = [StateAverager(Fusible({"actor": draw(seed, 5)}), FusionOptions()) for seed in range(2)]
    errors = together(_prepare_or_fail, [*alike, other])
    assert errors == [MemberLost, MemberLost, FailedPrecondition]
    assert together(_prepare_or_fail, alike) == [None, None]


def test_the_geometric_mean_of_equal_rates_is_exact() -> None:
    rates = torch.tensor([0.1, 3e-4, 7.0], dtype=torch.float64)
    assert torch.equal(geometric_mean(rates.expand(5, 3).clone()), rates)
    mixed = geometric_mean(torch.tensor([[1e-2], [1e-4]], dtype=torch.float64))
    assert float(mixed) == pytest.approx(1e-3, rel=1e-7)


# --- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_merged_statistics_equal_those_of_all_samples_in_every_round(mode: str) -> None:
    fused = learners(mode)
    seen = [draw(seed + 60, 10 + seed, 2) for seed in range(LEARNERS)]
    for number in range(4):
        for rank, fusible in enumerate(fused.fusibles):
            samples = draw(1000 + 10 * number + rank, 5 * (rank + number), 2) * (1 + rank) + number
            if len(samples):
                fusible.statistics["observation"].add(RunningMoments.of(samples))
                seen.append(samples)
        # Every other round is aborted and repeated.
        if number % 2:
            fused.prepare()
        fused.round()
        whole = RunningMoments.of(torch.cat(seen))
        totals = [fusible.statistics["observation"].total for fusible in fused.fusibles]
        for total in totals:
            assert total.count == whole.count
            torch.testing.assert_close(total.mean, whole.mean, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(total.variance, whole.variance, rtol=1e-12, atol=1e-12)
            assert torch.equal(total.squared_deviation, totals[0].squared_deviation)


# --- joiners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_joiner_takes_the_leaders_state_and_keeps_its_own_fresh_samples(mode: str) -> None:
    fused = learners(mode)
    fused.round()
    joined = learners(mode, seeds=(8, 9))
    joined.fusibles[0], joined.fusions[0] = fused.fusibles[0], fused.fusions[0]
    head, fresh = everything(fused.fusibles[0]), joined.fusibles[1].statistics["observation"].fresh
    together(_welcome, joined.fusions, [False, True])
    taken = everything(joined.fusibles[1])
    assert_equal(everything(joined.fusibles[0]), head)
    assert_equal(taken, head, but=("statistics.observation.fresh", "statistics.return.fresh"))
    assert joined.fusibles[1].statistics["observation"].fresh is fresh
    for name, tensor in joined.fusions[0].tensors().items():
        assert torch.equal(joined.fusions[1].tensors()[name], tensor)
    joined.round()
    # 10, 11 and 12 samples of the first three, 19 of the joiner; those of the leader were common already.
    assert joined.fusibles[1].statistics["observation"].total.count == 10 + 11 + 12 + 19


def _join_and_prepare(group: Group, fusion: StateAverager, joiners: frozenset[int]) -> PendingAverage:
    fusion.group = group
    if joiners:
        fusion.broadcast_leader_state(joining=group.rank in joiners)
    return fusion.prepare(joiners=joiners)


def round_with(fused: Learners, joiners: frozenset[int]) -> list[PendingAverage]:
    """Runs a round in which the ranks of `joiners` take the leader's state first."""
    scratches = together(_join_and_prepare, fused.fusions, [joiners] * len(fused.fusions))
    for fusion, scratch in zip(fused.fusions, scratches, strict=True):
        fusion.apply(scratch)
    return scratches


def test_with_a_leader_at_1_a_follower_at_4_and_a_joiner_the_mean_is_2_5() -> None:
    fused = learners()
    for fusible, value in zip(fused.fusibles, (1.0, 4.0, 100.0), strict=True):
        for tensor in (*fusible.parameters.values(), *fusible.targets.values(), *fusible.moments.values()):
            tensor.fill_(value)
        fusible.rates["rate"].fill_(value)
    scratches = round_with(fused, frozenset({2}))
    assert len({scratch.digest() for scratch in scratches}) == 1
    for after in fused.states():
        assert_equal(after, fused.states()[0])
        for name, tensor in after.items():
            if name.startswith(("parameters", "targets", "moments")):
                assert torch.equal(tensor, torch.full_like(tensor, 2.5)), name
        # The geometric mean of 1 and 4.
        assert float(after["rates.rate"]) == 2.0
        # The fresh samples of all three.
        assert after["statistics.observation.common.count"] == 10 + 11 + 12


@pytest.mark.parametrize("mode", ["average", "diloco"])
def test_a_joiner_without_samples_changes_nothing_in_its_first_round(mode: str) -> None:
    without, fused = apart(mode), apart(mode)
    for pair in (without, fused):
        # Rank 1 is a follower that has trained; rank 2 is new in one of them and absent in the other.
        pair.round()
        for rank, fusible in enumerate(pair.fusibles):
            fusible.parameters["actor"].add_(draw(rank + 90, 5))
    fused.fusibles[2].parameters["actor"].fill_(100.0)
    without = Learners(without.fusibles[:2], without.fusions[:2])
    round_with(without, frozenset())
    scratches = round_with(fused, frozenset({2}))
    assert len({scratch.digest() for scratch in scratches}) == 1
    for rank, after in enumerate(fused.states()):
        # What a mode does not share, a joiner has from the leader.
        assert_equal(after, without.states()[rank if rank < 2 else 0])
        assert torch.equal(fused.fusions[rank].velocity, without.fusions[0].velocity)


@pytest.mark.parametrize("mode", MODES)
def test_if_all_others_join_the_result_is_the_state_of_the_leader(mode: str) -> None:
    fused = learners(mode)
    before = fused.states()[0]
    round_with(fused, frozenset({1, 2}))
    for after in fused.states():
        assert_equal(after, before, but=("statistics", "counts"))


def test_broadcasting_the_leaders_state_changes_only_joiners() -> None:
    fused = learners()
    before = fused.states()
    together(_welcome, fused.fusions, [False, True, False])
    assert_equal(fused.states()[0], before[0])
    assert_equal(fused.states()[2], before[2])


def test_a_learner_without_a_group_cannot_take_part() -> None:
    with pytest.raises(FailedPrecondition, match="must join one first"):
        learners().fusions[0].prepare()


# --- diloco ----------------------------------------------------------------------------------------------------------


def test_an_outer_step_is_nesterov_momentum_on_the_mean_movement() -> None:
    anchor, velocity = draw(0, 6), torch.zeros(6)
    reference = torch.nn.Parameter(anchor.double())
    optimizer = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    for seed in range(1, 6):
        delta = 0.1 * draw(seed, 6)
        reference.grad = delta.double()
        optimizer.step()
        anchor, velocity = outer_step(anchor, velocity, delta, 0.7, 0.9)
        torch.testing.assert_close(anchor.double(), reference.detach(), rtol=1e-5, atol=1e-6)


def test_an_outer_step_with_rate_1_and_no_momentum_is_the_average() -> None:
    diloco = apart("diloco", outer_learning_rate=1.0, outer_momentum=0.0)
    average = apart("average")
    diloco.round()
    average.round()
    for name in ("parameters.actor", "targets.critic", "rates.rate"):
        torch.testing.assert_close(diloco.states()[1][name], average.states()[1][name])


def test_diloco_keeps_the_moments_and_counters_of_each_learner() -> None:
    fused = apart("diloco")
    before = fused.states()
    scratches = fused.round()
    assert len({scratch.digest() for scratch in scratches}) == 1
    for after, earlier in zip(fused.states(), before, strict=True):
        for name in ("moments.exp_avg", "moments.exp_avg_sq", "counts.step"):
            assert torch.equal(after[name], earlier[name])
        assert torch.equal(after["targets.critic"], mean_of(before, "targets.critic"))
    assert_equal(fused.states()[0], fused.states()[2], but=("moments", "counts"))


def test_the_next_outer_step_starts_from_the_result_of_the_last_one() -> None:
    fused = apart("diloco")
    fused.round()
    for fusible, fusion in zip(fused.fusibles, fused.fusions, strict=True):
        assert torch.equal(fusion.anchor, torch.cat(list(fusible.parameters.values())))
        assert fusion.velocity.any()


def test_the_first_round_of_a_session_makes_no_outer_step() -> None:
    fused = learners("diloco", seeds=(0,))
    (fusion,), before = fused.fusions, fused.states()[0]
    fusion.group = Group.join("", "", 0, 1, "cpu", timeout_seconds=1.0)
    fusion.velocity.fill_(1.0)
    fusion.apply(fusion.prepare(first_round=True))
    assert_equal(fused.states()[0], before, but=("statistics",))
    assert torch.equal(fusion.velocity, torch.ones_like(fusion.velocity))
    fusion.apply(fusion.prepare())
    assert not torch.equal(fused.states()[0]["parameters.actor"], before["parameters.actor"])


def test_learners_with_different_anchors_get_different_digests() -> None:
    digests = [scratch.digest() for scratch in learners("diloco").prepare()]
    assert len(set(digests)) == LEARNERS


# --- allreduce -------------------------------------------------------------------------------------------------------


def _reduce(group: Group, fusion: StateAverager, gradient: torch.Tensor) -> torch.Tensor:
    fusion.group = group
    fusion.reduce(gradient)
    return gradient


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_averaged_only_in_allreduce(mode: str) -> None:
    gradients = [draw(rank, 9) for rank in range(LEARNERS)]
    reduced = together(_reduce, learners(mode).fusions, [gradient.clone() for gradient in gradients])
    mean = (sum(gradient.double() for gradient in gradients) / LEARNERS).float()
    for own, result in zip(gradients, reduced, strict=True):
        assert torch.equal(result, mean if mode == "allreduce" else own)


def test_a_learner_without_a_group_keeps_its_gradients() -> None:
    gradient = draw(0, 9)
    learners("allreduce").fusions[0].reduce(gradient)
    assert torch.equal(gradient, draw(0, 9))


def test_allreduce_rounds_change_only_statistics_and_digests_reveal_a_drifted_learner() -> None:
    fused = learners("allreduce", seeds=(4, 4, 4))
    before = fused.states()[0]
    assert len({scratch.digest() for scratch in fused.round()}) == 1
    assert_equal(fused.states()[1], before, but=("statistics",))
    for change in ("parameters", "targets", "moments", "counts", "rates"):
        drifted = learners("allreduce", seeds=(4, 4, 4))
        next(iter(getattr(drifted.fusibles[1], change).values())).mul_(1.0 + 1e-6)
        digests = [scratch.digest() for scratch in drifted.prepare()]
        assert digests[0] == digests[2] != digests[1], change


def test_an_update_that_waits_for_a_slow_learner_is_not_stuck():
    """The deadline of an update may be shorter than the time limit of a collective."""
    activity, seen = Activity(), list[int]()
    activity.counter = WARM_UP_TICKS

    class SlowGroup:
        def average_(self, tensor: torch.Tensor) -> None:
            seen.append(activity.phase)

        def finish(self) -> None:
            seen.append(activity.phase)

    averager = StateAverager(make_fusible(0), FusionOptions(mode="allreduce"), partial(activity.waiting, 20.0))
    averager.group = SlowGroup()
    with activity.doing(pb.ROLE_PHASE_UPDATING):
        averager.reduce(torch.ones(2))
        averager.reduce.finish()
        assert activity.phase == pb.ROLE_PHASE_UPDATING
    assert seen == [pb.ROLE_PHASE_WAITING] * 2
