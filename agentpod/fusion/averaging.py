"""Owns what one learner brings to a fusion round, and what the round makes of it.

The rule for each kind of state, by mode. What is not local has the same bits at every member afterwards.

| | `average` | `allreduce` | `diloco` |
|---|---|---|---|
| parameters, log temperature | mean | equal already: every gradient is a mean | outer step on the mean |
| target networks | mean | equal already | mean |
| moments of Adam | mean | equal already | local |
| step counters of Adam | maximum | equal already | local |
| adaptive learning rates | geometric mean | equal already | geometric mean |
| statistics of observations and returns | all samples of all members, each once | likewise | likewise |

- A mean is summed in float64, in the order of the ranks, and rounded once.
- Mean moments are what the mean gradients would have left behind. The counter only says how much of its bias a moment
  has lost; the largest is right for the learner that has most to lose.
- Rates adapt by factors, so it is the mean of their logarithms that favours none.
- In `diloco` a learner keeps the moments of its own path (Douillard et al. 2023, arXiv 2311.08105, algorithm 1).
- Equal learners are left as they are, to the bit, by `average`.
- A joiner takes all of this from the head, what is local and the outer step's memory too. Its fresh samples it keeps.

Between `prepare` and `apply`, or the decision to forget the scratch, nothing may touch the state.
"""

import hashlib
from collections.abc import Iterable, Iterator
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
    """The result of a round, computed aside.

    Attributes:
        single: [F] float32, new values of what the mode shares of parameters, targets and moments; then, in `diloco`,
            the outer velocity.
        double: [D] float64, of rates and counters likewise; then the common statistics.
    """

    single: Tensor
    double: Tensor

    def digest(self) -> str:
        """SHA-256 over all bytes, in hexadecimal."""
        digest = hashlib.sha256(self.double.cpu().numpy().data)
        digest.update(self.single.cpu().numpy().data)
        return digest.hexdigest()


class StateAverager:
    """One learner's side of the fusion of its agent; agentpod.fusion.rounds is the head's.

        fusion = Fusion(fusible, options)
        optimizer.reduce = fusion.reduce
        ...
        formation = await JoinFusion(...)
        if formation.epoch != epoch:
            fusion.group = Group.join(...)
        if formation.joiners:
            fusion.welcome(joining=rank in formation.joiners)
        scratch = fusion.prepare()
        if (await CommitFusion(scratch.digest())).committed:
            fusion.apply(scratch)

    Attributes:
        group: The members of the present epoch; None while there are none.
        anchor: [P] float32, all parameters where the last outer step ended; empty in other modes than `diloco`.
        velocity: [P] float32, of the outer step; likewise.
    """

    def __init__(self, fusible: Fusible, options: FusionOptions) -> None:
        """Begins the first outer step where the parameters are now."""
        self._fusible, self._options, self._diloco = fusible, options, options.mode == "diloco"
        self._device = next(iter(fusible.parameters.values())).device
        self._single: Tensor | None = None
        self._checked: Group | None = None
        self.group: Group | None = None
        self.anchor = self._row(fusible.parameters.values() if self._diloco else (), torch.float32)
        self.velocity = torch.zeros_like(self.anchor)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep beside the fusible state, live."""
        return {"anchor": self.anchor, "velocity": self.velocity}

    def reduce(self, tensor: Tensor) -> None:
        """In mode `allreduce`, averages what decides a step (a gradient, a divergence) over the learners, in place.

        Raises:
            MemberLost: Some learners may have made this step and others not: they have to meet at the next round now.
        """
        if self.group and self._options.mode == "allreduce":
            self.group.mean_(tensor)

    def broadcast_leader_state(self, *, joining: bool) -> None:
        """Sends the head's state to all; those who join take it, but for their own fresh samples.

        Raises:
            FailedPrecondition: This learner has another layout than the head: it will never be able to take part.
            MemberLost: The round is over; nothing was taken.
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

    def prepare(self, *, first_round: bool = False) -> PendingAverage:
        """Computes the result of the round: two collectives, or one where the gradients were shared.

        Args:
            first_round: Whether no member has updated since all took the leader's state. `diloco` then makes no outer
                step: the parameters have not moved, so the step would follow the momentum alone.

        Returns:
            Memory that the next call uses again.

        Raises:
            FailedPrecondition: As for `welcome`.
            MemberLost: The round is over; nothing was changed.
        """
        group, options = self._checked_group(), self._options
        fresh = [held.fresh.flat() for held in self._fusible.statistics.values()]
        rows = torch.stack(list(group.gather(self._row([*self._float64_state(), *fresh], torch.float64))))
        # Fresh pages for millions of parameters would cost more than their mean does.
        self._single = self._row([*self._float32_state(), self.velocity], torch.float32, self._single)
        count, shared = len(self.anchor), self._single[: len(self._single) - len(self.velocity)]
        steps = self._diloco and not first_round
        if steps:
            torch.sub(self.anchor, shared[:count], out=shared[:count])
        if options.mode != "allreduce":
            group.mean_(shared)
        if steps:
            rate, momentum = options.outer_learning_rate, options.outer_momentum
            shared[:count], self._single[-count:] = outer_step(
                self.anchor, self.velocity, shared[:count], rate, momentum
            )
        return PendingAverage(self._single, self._fused_rows(rows))

    def apply(self, scratch: PendingAverage) -> None:
        """Takes the result of a committed round, in place."""
        velocity = _write(scratch.single, self._float32_state())
        if self._diloco:
            self.anchor.copy_(scratch.single[: len(self.anchor)])
            self.velocity.copy_(velocity)
        commons = self._moments(_write(scratch.double, self._float64_state()))
        for held, common in zip(self._fusible.statistics.values(), commons, strict=True):
            held.commit(common)

    def _fused_rows(self, rows: Tensor) -> Tensor:
        """What [L, D] rates, counters and fresh statistics of all members make together: [D]."""
        shared, rates = len(self._float64_state()), len(self._fusible.rates)
        numbers = torch.cat([geometric_mean(rows[:, :rates]), rows[:, rates:shared].amax(0)])
        if self._options.mode == "allreduce":
            # As they are: were they not equal, the digests would have to show it.
            numbers = self._row(self._float64_state(), torch.float64)
        brought = zip(*(self._moments(row[shared:]) for row in rows), strict=True)
        merged = (
            held.merged(fresh).flat() for held, fresh in zip(self._fusible.statistics.values(), brought, strict=True)
        )
        return torch.cat([numbers, *(row.to(numbers.device) for row in merged)])

    def _float32_state(self, *, everything: bool = False) -> list[Tensor]:
        """The live tensors that the mode shares, or all."""
        fusible = self._fusible
        shared = [*fusible.parameters.values(), *fusible.targets.values()]
        return [*shared, *fusible.moments.values()] if everything or not self._diloco else shared

    def _float64_state(self, *, everything: bool = False) -> list[Tensor]:
        """The live numbers that the mode shares, or all."""
        rates, counts = self._fusible.rates.values(), self._fusible.counts.values()
        return [*rates, *counts] if everything or not self._diloco else [*rates]

    def _moments(self, row: Tensor) -> Iterator[RunningMoments]:
        """Cuts the moments of all statistics from a row."""
        for held in self._fusible.statistics.values():
            mean = held.common.mean
            length = 1 + 2 * mean.numel()
            yield RunningMoments.from_flat(row[:length].to(mean.device), tuple(mean.shape))
            row = row[length:]

    def _row(self, tensors: Iterable[Tensor], dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """Copies tensors into one, [elements]."""
        empty = torch.empty(0, dtype=dtype, device=self._device)
        return torch.cat([empty, *(tensor.detach().flatten().to(self._device, dtype) for tensor in tensors)], out=out)

    def _checked_group(self) -> Group:
        """The group, after making sure, once, that all members have one layout: tensors must not differ in size."""
        group = self.group
        if group is None:
            raise FailedPrecondition("this learner is in no fusion group: it has to join one first")
        if group is not self._checked:
            layout = self._layout().to(self._device)
            layouts = group.gather(layout)
            if not torch.equal(layout, layouts[0]):
                raise FailedPrecondition(
                    f"the learner of rank {group.rank} has other networks, statistics or another fusion.mode than the"
                    " head: both must be made from one specification by one build"
                )
            strangers = [rank for rank, other in enumerate(layouts) if not torch.equal(other, layout)]
            if strangers:
                raise MemberLost(f"the learner of rank {strangers[0]} has another layout than the head")
            self._checked = group
        return group

    def _layout(self) -> Tensor:
        """SHA-256 over the mode and over kinds, names, shapes and dtypes in order: [32] uint8."""
        lines = [self._options.mode]
        for kind, tensors in vars(self._fusible).items():
            for name, held in tensors.items():
                tensor = held.common.mean if isinstance(held, SharedMoments) else held
                lines.append(f"{kind} {name} {list(tensor.shape)} {tensor.dtype}")
        return torch.tensor(list(hashlib.sha256("\n".join(lines).encode()).digest()), dtype=torch.uint8)


def outer_step(
    anchor: Tensor, velocity: Tensor, delta: Tensor, learning_rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Descent with Nesterov momentum along how far the learners have gone (Douillard et al. 2023, algorithm 1):

        v' = momentum v + delta;  parameters = anchor - learning_rate (delta + momentum v')

    Args:
        anchor: [P] float32, the parameters after the last outer step.
        velocity: [P] float32, v.
        delta: [P] float32, mean over the learners of anchor - parameters.
        learning_rate: Of the outer step; 1 without momentum leads to the mean of the parameters.
        momentum: Likewise.

    Returns:
        The new parameters and v', both [P].
    """
    velocity = momentum * velocity + delta
    return anchor - learning_rate * (delta + momentum * velocity), velocity


def geometric_mean(rates: Tensor) -> Tensor:
    """exp(mean(log r)) over the members: [L, R] positive float64 -> [R] float64; equal rates stay as they are."""
    # The last bits of exp and log depend on the machine, and the digests of all members must not.
    factor = (rates / rates[0]).log_().mean(0).exp_().float()
    return rates[0] * factor


def _write(row: Tensor, tensors: Iterable[Tensor]) -> Tensor:
    """Copies a row into tensors, one after the other; returns what is left of it."""
    for tensor in tensors:
        tensor.copy_(row[: tensor.numel()].view(tensor.shape))
        row = row[tensor.numel() :]
    return row
