"""Computes what a fusion round averages, and applies the result to one learner.

The rule for each kind of state, by mode. After a round, all state that is not local is identical to the bit on every
member.

| | `average` | `allreduce` | `diloco` |
|---|---|---|---|
| parameters, log temperature | mean | equal already: every gradient is a mean | outer step on the mean |
| target networks | mean | equal already | mean |
| moments of Adam | mean | equal already | local |
| step counters of Adam and of schedules | maximum | equal already | local |
| adaptive learning rates | geometric mean | equal already | geometric mean |
| statistics of observations and returns | all samples of all members, each once | likewise | likewise |

- A mean is summed in float64, in rank order, and rounded once.
- The mean of the moments is what the mean gradients would have produced. Adam's step counter determines only its bias
  correction; the maximum is right for the learner whose moments have the least bias left. With the maximum of the
  counters of schedules, no learner goes back in its schedule.
- Learning rates adapt by factors, so their geometric mean favors no learner.
- In `diloco` every learner keeps the Adam moments of its own path (Douillard et al. 2023, arXiv 2311.08105, algorithm
  1).
- In `average`, learners that are equal stay equal and unchanged to the bit.
- A joiner takes all of this state from the leader, including local state and the memory of the outer step. It keeps its
  own fresh samples. In this round it has only a copy of what the leader learned, so means are those of the other
  members: a second copy of the leader would outweigh what the others learned.

From `prepare` until `apply`, or until the caller discards the result, the state must not change.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.fusible import Fusible
from agentpod.fusion.rounds import FusionOptions
from agentpod.models.normalizer import RunningMoments, SharedMoments
from podrace.errors import FailedPrecondition
from podrace.tensor_transport.group import Group, MemberLost


@dataclass(frozen=True)
class PendingAverage:
    """The result of a round, computed in separate memory and not yet applied.

    Attributes:
        single: [F] float32, new values of the parameters, targets and moments that the mode shares; then, in `diloco`,
            the outer velocity.
        double: [D] float64, new values of the rates and counters that the mode shares; then the common statistics.
    """

    single: Tensor
    double: Tensor

    def digest(self) -> str:
        """Returns the SHA-256 of all bytes, in hexadecimal."""
        digest = hashlib.sha256(self.double.cpu().numpy().data)
        digest.update(self.single.cpu().numpy().data)
        return digest.hexdigest()


class StateAverager:
    """Averages one learner's state with the other members'; agentpod.fusion.rounds coordinates the rounds.

        averager = StateAverager(fusible, options)
        algorithm.share_gradients(averager.reduce)
        ...
        membership = await JoinFusion(...)
        if membership.epoch != epoch:
            averager.group = Group.join(...)
        if membership.joiners:
            averager.broadcast_leader_state(joining=rank in membership.joiners)
        pending = averager.prepare(joiners=membership.joiners)
        if (await CommitFusion(pending.digest())).committed:
            averager.apply(pending)

    Attributes:
        group: The members of the present epoch; None without a group.
        reduce: Averages what determines a step of the optimizer, in mode `allreduce`.
        anchor: [P] float32, all parameters after the last outer step; empty in modes other than `diloco`.
        velocity: [P] float32, of the outer step; empty in modes other than `diloco`.
    """

    def __init__(
        self,
        fusible: Fusible,
        options: FusionOptions,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Starts the first outer step at the present parameters.

        Args:
            fusible: State of the learner.
            options: Settings of the tournament.
            waiting: Entered while an update waits for the other members.
        """
        self._fusible, self._options, self._diloco = fusible, options, options.mode == "diloco"
        self._device = next(iter(fusible.parameters.values())).device
        self._single: Tensor | None = None
        self._checked: Group | None = None
        self.group: Group | None = None
        self.reduce = GradientAverage(self, waiting, enabled=options.mode == "allreduce")
        self.anchor = self._row(fusible.parameters.values() if self._diloco else (), torch.float32)
        self.velocity = torch.zeros_like(self.anchor)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the live tensors that a checkpoint must contain besides the fusible state."""
        return {"anchor": self.anchor, "velocity": self.velocity}

    def broadcast_leader_state(self, *, joining: bool) -> None:
        """Sends the leader's state to all members; joiners take it but keep their own fresh samples.

        Raises:
            FailedPrecondition: This learner has another state layout than the leader and can never take part.
            MemberLost: The round failed; nothing was changed.
        """
        group, statistics = self._checked_group(), self._fusible.statistics.values()
        singles = [*self._float32_state(everything=True), self.anchor, self.velocity]
        doubles = self._float64_state(everything=True)
        commons = [held.common.flat() for held in statistics]
        single = group.broadcast(self._row(singles, torch.float32), 0)
        double = group.broadcast(self._row([*doubles, *commons], torch.float64), 0)
        if joining:
            _write(single, singles)
            for held, common in zip(statistics, self._moments(_write(double, doubles)), strict=True):
                held.common = common

    def prepare(self, *, joiners: Collection[int] = (), first_round: bool = False) -> PendingAverage:
        """Computes the result of the round with two collectives, or with one in mode `allreduce`.

        Args:
            joiners: Ranks that took the leader's state for this round; the means are those of the other members.
            first_round: Whether no member has updated since all took the leader's state. `diloco` then makes no outer
                step: the parameters have not moved, so the step would follow the momentum alone.

        Returns:
            The result, in memory that the next call overwrites.

        Raises:
            FailedPrecondition: As for `broadcast_leader_state`.
            MemberLost: The round failed; nothing was changed.
        """
        group, options = self._checked_group(), self._options
        trained = [rank for rank in range(group.size) if rank not in joiners]
        fresh = [held.fresh.flat() for held in self._fusible.statistics.values()]
        rows = torch.stack(list(group.gather(self._row([*self._float64_state(), *fresh], torch.float64))))
        # The row is reused: allocating new pages for millions of parameters takes longer than averaging them.
        self._single = self._row([*self._float32_state(), self.velocity], torch.float32, self._single)
        count, shared = len(self.anchor), self._single[: len(self._single) - len(self.velocity)]
        steps = self._diloco and not first_round
        if steps:
            torch.sub(self.anchor, shared[:count], out=shared[:count])
        if options.mode != "allreduce":
            group.mean_(shared, trained)
        if steps:
            rate, momentum = options.outer_learning_rate, options.outer_momentum
            shared[:count], self._single[-count:] = outer_step(
                self.anchor, self.velocity, shared[:count], rate, momentum
            )
        return PendingAverage(self._single, self._fused_rows(rows, trained))

    def apply(self, pending: PendingAverage) -> None:
        """Applies the result of a committed round, in place."""
        velocity = _write(pending.single, self._float32_state())
        if self._diloco:
            self.anchor.copy_(pending.single[: len(self.anchor)])
            self.velocity.copy_(velocity)
        commons = self._moments(_write(pending.double, self._float64_state()))
        for held, common in zip(self._fusible.statistics.values(), commons, strict=True):
            held.commit(common)

    def _fused_rows(self, rows: Tensor, trained: list[int]) -> Tensor:
        """Combines rates of the `trained` ranks, and counters and fresh statistics of all members: [L, D] -> [D]."""
        shared, rates = len(self._float64_state()), len(self._fusible.rates)
        numbers = torch.cat([geometric_mean(rows[trained, :rates]), rows[:, rates:shared].amax(0)])
        if self._options.mode == "allreduce":
            # Unchanged, so that unequal values would show in the digests.
            numbers = self._row(self._float64_state(), torch.float64)
        brought = zip(*(self._moments(row[shared:]) for row in rows), strict=True)
        merged = (
            held.merged(fresh).flat() for held, fresh in zip(self._fusible.statistics.values(), brought, strict=True)
        )
        return torch.cat([numbers, *(row.to(numbers.device) for row in merged)])

    def _float32_state(self, *, everything: bool = False) -> list[Tensor]:
        """Returns the live float32 tensors that the mode shares, or all."""
        fusible = self._fusible
        shared = [*fusible.parameters.values(), *fusible.targets.values()]
        return [*shared, *fusible.moments.values()] if everything or not self._diloco else shared

    def _float64_state(self, *, everything: bool = False) -> list[Tensor]:
        """Returns the live rates and counters that the mode shares, or all."""
        rates, counts = self._fusible.rates.values(), self._fusible.counts.values()
        return [*rates, *counts] if everything or not self._diloco else [*rates]

    def _moments(self, row: Tensor) -> Iterator[RunningMoments]:
        """Splits the moments of all statistics from a row."""
        for held in self._fusible.statistics.values():
            mean = held.common.mean
            length = 1 + 2 * mean.numel()
            yield RunningMoments.from_flat(row[:length].to(mean.device), tuple(mean.shape))
            row = row[length:]

    def _row(self, tensors: Iterable[Tensor], dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """Concatenates copies of tensors: [elements]."""
        empty = torch.empty(0, dtype=dtype, device=self._device)
        return torch.cat([empty, *(tensor.detach().flatten().to(self._device, dtype) for tensor in tensors)], out=out)

    def _checked_group(self) -> Group:
        """Returns the group, after checking once that all members have the same layout, as collectives require."""
        group = self.group
        if group is None:
            raise FailedPrecondition("this learner is in no fusion group: it must join one first")
        if group is not self._checked:
            layout = self._layout().to(self._device)
            layouts = group.gather(layout)
            if not torch.equal(layout, layouts[0]):
                raise FailedPrecondition(
                    f"the learner of rank {group.rank} has other networks, statistics or another fusion.mode than the"
                    " leader: run the same build with the same specification on both"
                )
            different = [rank for rank, other in enumerate(layouts) if not torch.equal(other, layout)]
            if different:
                raise MemberLost(f"the learner of rank {different[0]} has another layout than the leader")
            self._checked = group
        return group

    def _layout(self) -> Tensor:
        """Returns the SHA-256 over the mode and over kinds, names, shapes and dtypes in order: [32] uint8."""
        lines = [self._options.mode, *layout_lines(self._fusible)]
        return torch.tensor(list(hashlib.sha256("\n".join(lines).encode()).digest()), dtype=torch.uint8)


class GradientAverage:
    """Averages tensors that determine a step (a gradient, a divergence) over the members of a group.

    Implements agentpod.algorithms.flat_adam.Reduce.
    """

    def __init__(
        self, averager: StateAverager, waiting: Callable[[], AbstractContextManager[None]], *, enabled: bool
    ) -> None:
        """Averages over the group that `averager` has at the time of a call; nothing if it is not `enabled`."""
        self._averager, self._waiting, self._enabled = averager, waiting, enabled

    def __call__(self, tensor: Tensor) -> None:
        """Averages a tensor in place; between GPUs without waiting for it.

        Raises:
            MemberLost: Some members may have made this step and others not. All have to take part in a new round now.
        """
        if self._enabled and self._averager.group:
            with self._waiting():
                self._averager.group.average_(tensor)

    def finish(self) -> None:
        """Waits for the averages of an update; raises MemberLost if some of them are undefined."""
        if self._enabled and self._averager.group:
            with self._waiting():
                self._averager.group.finish()


def layout_lines(fusible: Fusible) -> list[str]:
    """Returns kind, name, shape and dtype of each piece of state, in order."""
    lines = []
    for kind, tensors in vars(fusible).items():
        for name, held in tensors.items():
            tensor = held.common.mean if isinstance(held, SharedMoments) else held
            lines.append(f"{kind} {name} {list(tensor.shape)} {tensor.dtype}")
    return lines


def outer_step(
    anchor: Tensor, velocity: Tensor, delta: Tensor, learning_rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Makes a step of gradient descent with Nesterov momentum along the learners' mean movement.

    From Douillard et al. 2023 (arXiv 2311.08105, algorithm 1):

        v' = momentum v + delta;  parameters = anchor - learning_rate (delta + momentum v')

    Args:
        anchor: [P] float32, the parameters after the last outer step.
        velocity: [P] float32, v.
        delta: [P] float32, mean over the learners of anchor - parameters.
        learning_rate: Of the outer step; 1 without momentum gives the mean of the parameters.
        momentum: Of the outer step.

    Returns:
        The new parameters and v', both [P].
    """
    velocity = momentum * velocity + delta
    return anchor - learning_rate * (delta + momentum * velocity), velocity


def geometric_mean(rates: Tensor) -> Tensor:
    """Computes exp(mean(log r)) over members: [L, R] positive float64 -> [R] float64; equal rates stay unchanged."""
    # The last bits of exp and log depend on the machine, but all members must get the same digest.
    factor = (rates / rates[0]).log_().mean(0).exp_().float()
    return rates[0] * factor


def _write(row: Tensor, tensors: Iterable[Tensor]) -> Tensor:
    """Copies consecutive parts of a row into tensors; returns the rest of the row."""
    for tensor in tensors:
        tensor.copy_(row[: tensor.numel()].view(tensor.shape))
        row = row[tensor.numel() :]
    return row
