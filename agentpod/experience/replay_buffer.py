"""Owns the replay memory: a ring of steps that workers fill segment by segment, and batches drawn from it.

Workers write into the memory in place, and ownership passes by message, as agentpod.experience.slots has it for
rollouts: a
segment of T rows is FILLING from `grant` to `receive`, then READY until it is granted again. READY rows are always
neighbours in the ring, up to the one before the FILLING ones, so that a step is found by its age: counted from the
oldest READY step on. Nobody samples a FILLING row, and no window of steps reaches into one.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.experience.prioritized_sampling import PriorityTree, importance_weights
from agentpod.experience.replay_layout import FINAL, pack, unpack
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted

MAXIMUM_GRANTS = 2
"""Segments that may be FILLING at once."""
MAXIMUM_PIECES = 64
"""Training files that a memory is cut into."""
GATHER_BYTES = 4 * 2**20
"""What is gathered at once for several batches: with more, none of them gets cheaper."""

LAYOUT_MISMATCH = (
    "the saved replay memory is of another layout: the environments and how many, horizon, replay_capacity and "
    "prioritized must be as they were"
)


class TransitionBatch(NamedTuple):
    """B transitions, each over the m <= n steps that begin with one that was drawn."""

    observation: Tensor
    """[B, *shape], as stored."""
    action: Tensor
    """[B] int64, or [B, A] float32."""
    reward: Tensor
    """[B] float32: sum over k < m of gamma^k r_k."""
    discount: Tensor
    """[B] float32: gamma^m; 0 where the last step terminated."""
    next_observation: Tensor
    """[B, *shape], what to bootstrap from; without meaning, but finite, where terminated."""
    weight: Tensor
    """[B] float32, importance weights; 1 where steps are drawn evenly."""
    index: Tensor  # type: ignore[assignment] # tuple.index is of no use here
    """[B] int64, row N + lane of the first step."""


class ReplayBuffer:
    """Steps in a ring of tensors that are laid out as `replay_fields` says.

        replay = Replay(region, horizon)
        while budget_left:
            first_row = replay.grant()
            await collect({name: tensor[first_row : first_row + horizon] for name, tensor in region.items()})
            replay.receive(first_row)
            for batch in replay.sample_many(updates, 256, 3, 0.99, generator):
                learn(batch)

    Attributes:
        capacity: Environment steps of the ring, over all environments, FILLING ones included.
        segment_steps: Those of a segment.
        steps: Those received over the whole life.
        device: Where batches are.
        prioritized: Whether steps are drawn by priority.
    """

    def __init__(
        self,
        memory: Mapping[str, Tensor],
        horizon: int,
        *,
        device: torch.device | str | None = None,
        prioritized: bool = False,
        priority_exponent: float = 0.6,
    ) -> None:
        """Begins without a READY step; raises InvalidArgument where the rows are not two or more whole segments.

        Args:
            memory: What workers write into.
            horizon: T, rows of a segment.
            device: Where to sample; None: where the memory is. Elsewhere a copy is kept, segment by segment received.
            prioritized: Whether to draw steps by priority (Schaul et al. 2016) instead of evenly.
            priority_exponent: Alpha: 0 draws evenly, 1 in proportion to the error.
        """
        (self._rows, self._count), here = memory["reward"].shape, memory["reward"].device
        if self._rows % horizon or self._rows < 2 * horizon:
            raise InvalidArgument(f"{self._rows} rows of replay memory are not two or more segments of {horizon} rows")
        self._horizon, self._segments = horizon, self._rows // horizon
        self.capacity, self.segment_steps, self.steps = self._rows * self._count, horizon * self._count, 0
        # READY segments end with the newest; those granted follow it.
        self._newest, self._ready, self._granted = -1, 0, 0
        wanted = torch.device(here if device is None else device)
        self.device = here if wanted.type == here.type and wanted.index is None else wanted
        self._memory = self._rings = memory
        if self.device != here:
            self._rings = {name: torch.empty_like(tensor, device=self.device) for name, tensor in memory.items()}
        self._flat = {name: ring.view(-1, *ring.shape[2:]) for name, ring in self._rings.items()}
        self._on_host = self.device.type == "cpu"
        self._restored = torch.zeros(self._rows, dtype=torch.bool)
        self.prioritized = prioritized
        self._priorities = PriorityTree(self.capacity if prioritized else 0, priority_exponent, self.device)

    @property
    def size(self) -> int:
        """Environment steps that can be sampled."""
        return self._ready * self.segment_steps

    @property
    def newest_row(self) -> int:
        """Row of the newest READY steps; -1 before any."""
        return (self._newest + 1) * self._horizon - 1

    @property
    def _oldest(self) -> int:
        """Index of the oldest READY step."""
        return ((self._newest + 1) * self.segment_steps - self.size) % self.capacity

    def grant(self) -> int:
        """Gives the next segment away to be filled, and what it held up; returns the first of its rows.

        Raises ResourceExhausted while MAXIMUM_GRANTS segments are out.
        """
        if self._granted == MAXIMUM_GRANTS:
            raise ResourceExhausted(f"{self._granted} segments of the replay memory are out: receive one of them first")
        self._granted += 1
        self._ready = min(self._ready, self._segments - self._granted)
        segment = (self._newest + self._granted) % self._segments
        if self.prioritized:
            self._priorities.exclude(segment * self.segment_steps, self.segment_steps)
        return segment * self._horizon

    def receive(self, first_row: int) -> None:
        """Takes back a filled segment, by what `grant` returned; from now on it is sampled.

        Raises FailedPrecondition where it is not out, or another one was granted before it.
        """
        segment = (self._newest + 1) % self._segments
        if not self._granted or first_row != segment * self._horizon:
            raise FailedPrecondition(f"the segment of row {first_row} is not what the replay memory waits for")
        self._newest, self._ready, self._granted = segment, self._ready + 1, self._granted - 1
        self.steps += self.segment_steps
        if self._rings is not self._memory:
            rows = torch.arange(first_row, first_row + self._horizon)
            unpack(self._rings, pack(self._memory, rows, self._horizon), self._horizon)
        if self.prioritized:
            self._priorities.admit(segment * self.segment_steps, self.segment_steps)

    def reclaim(self) -> None:
        """Takes back, empty, what is out: who was filling it is gone, and the environments begin anew."""
        self._granted = 0
        self.mark_truncated()

    def mark_truncated(self) -> None:
        """Marks the newest steps truncated unless they terminated: what is received next did not follow from them."""
        if self._ready:
            self._rings["truncated"][self.newest_row] |= ~self._rings["terminated"][self.newest_row]

    def newest_segment(self) -> dict[str, Tensor]:
        """Views of the newest READY segment, [T, N, ...] each."""
        rows = slice(self.newest_row + 1 - self._horizon, self.newest_row + 1)
        return {name: ring[rows] for name, ring in self._rings.items()}

    def sample(
        self, batch_size: int, n_step: int, discount: float, generator: torch.Generator, *, beta: float = 1.0
    ) -> TransitionBatch:
        """Draws READY steps, with replacement; no device is made to wait.

        The window of a step ends after n, where an episode ends, or with the newest READY row, whichever comes first.
        What follows it is final_observation where its last step was truncated or is of the newest row, else the
        observation of the next row.

        Args:
            batch_size: B.
            n_step: n, rewards summed before a value is bootstrapped from.
            discount: Gamma, of one step.
            generator: On `device`.
            beta: Exponent of the importance weights; without priorities it changes nothing.

        Raises:
            FailedPrecondition: There is no READY step.
        """
        if not self._ready:
            raise FailedPrecondition("the replay memory has nothing to sample: receive a segment first")
        if not self.prioritized:
            age = torch.randint(self.size, (batch_size,), generator=generator, device=self.device)
            return self._transitions(age, torch.ones(batch_size, device=self.device), n_step, discount)
        index, probability = self._priorities.sample(batch_size, generator)
        weight = importance_weights(probability, self.size, beta)
        return self._transitions(self._age(index), weight, n_step, discount)

    def sample_many(
        self, updates: int, batch_size: int, n_step: int, discount: float, generator: torch.Generator, **options: float
    ) -> Iterator[TransitionBatch]:
        """Draws K = `updates` batches; the other arguments are those of `sample`.

        Several are drawn and gathered as one larger batch, which is then cut: no segment may be granted or received
        before the last. With priorities each is drawn when it is asked for, and knows of those set meanwhile.
        """
        step_bytes = 2 * self._flat["observation"][0].nbytes + 32 * n_step
        at_once = 1 if self.prioritized else max(1, GATHER_BYTES // (batch_size * step_bytes))
        for done in range(0, updates, at_once):
            several = self.sample(min(at_once, updates - done) * batch_size, n_step, discount, generator, **options)
            yield from map(
                TransitionBatch._make, zip(*(torch.split(field, batch_size) for field in several), strict=True)
            )

    def gather(self, index: Tensor, n_step: int, discount: float) -> TransitionBatch:
        """The transitions of given READY steps, [B] int64 as in Batch.index, with weights of 1; else as `sample`."""
        return self._transitions(self._age(index), torch.ones(len(index), device=self.device), n_step, discount)

    def update_priorities(self, index: Tensor, absolute_td_error: Tensor) -> None:
        """Gives the steps of a batch, `index` [B], the priorities of their new errors [B].

        A step that was given away meanwhile, and one whose error is not finite, keep the priority that they have.
        """
        self._priorities.update(index, absolute_td_error)

    def _age(self, index: Tensor) -> Tensor:
        return (index - self._oldest) % self.capacity

    def _transitions(self, age: Tensor, weight: Tensor, n_step: int, discount: float) -> TransitionBatch:
        index = (age + self._oldest) % self.capacity
        window = self._one_step if n_step == 1 else self._several_steps
        last, reward, following_discount, final = window(age, index, n_step, discount)
        observation, action = (self._flat[name].index_select(0, index) for name in ("observation", "action"))
        # Where the final observation counts, the next row may be FILLING: the step's own is read there first.
        following = torch.add(last, ~final, alpha=self._count) % self.capacity
        next_observation = self._with_final(self._flat["observation"].index_select(0, following), last, final)
        return TransitionBatch(observation, action, reward, following_discount, next_observation, weight, index)

    def _with_final(self, next_observation: Tensor, last: Tensor, final: Tensor) -> Tensor:
        """Puts the final observations of steps `last` [B] where the mask `final` [B] has them."""
        found = self._flat[FINAL]
        if not self._on_host:
            # Asking how many there are would make the device wait.
            mask = final.view(-1, *(1,) * (found.dim() - 1))
            return torch.where(mask, found.index_select(0, last), next_observation)
        if len(rows := final.nonzero().squeeze(1)):
            # Nothing else is read: memory that was never written has no pages yet.
            next_observation.index_copy_(0, rows, found.index_select(0, last.index_select(0, rows)))
        return next_observation

    def _one_step(self, age: Tensor, index: Tensor, n_step: int, discount: float) -> tuple[Tensor, ...]:
        """`_several_steps` for n = 1, where nothing lies ahead."""
        reward, terminated, truncated = self._outcomes(index)
        return index, reward, ~terminated * discount, truncated | (age >= self.size - self._count)

    def _several_steps(self, age: Tensor, index: Tensor, n_step: int, discount: float) -> tuple[Tensor, ...]:
        """Looks n steps ahead, in tensors with a row [B] for each. Returns of each window the last step, the discounted
        sum of rewards, the discount of what follows, and whether that is a final observation: [B] each.
        """
        k = torch.arange(n_step, device=self.device).unsqueeze(1)
        ahead = age + k * self._count
        # Past the newest row lies FILLING memory: the first step is read once more there, and not counted.
        steps = (torch.where(ahead < self.size, ahead, age) + self._oldest) % self.capacity
        reward, terminated, truncated = (found.view(steps.shape) for found in self._outcomes(steps.view(-1)))
        final = truncated | (ahead >= self.size - self._count)
        ends = terminated | final | (k == n_step - 1)
        # Of equal maxima the first counts: the first step that ends. (argmax would say the same in 25 times the time.)
        last = ends.view(torch.uint8).max(0, keepdim=True).indices
        powers = discount ** torch.arange(n_step + 1, device=self.device, dtype=torch.float64)
        total = torch.where(k <= last, reward * powers[:-1].float().unsqueeze(1), 0.0).sum(0)
        following = powers.float().index_select(0, last.squeeze(0) + 1)
        steps, terminated, final = (tensor.gather(0, last).squeeze(0) for tensor in (steps, terminated, final))
        return steps, total, following.masked_fill_(terminated, 0.0), final

    def _outcomes(self, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._flat[name].index_select(0, index) for name in ("reward", "terminated", "truncated"))

    def segments(self, since_steps: int = 0) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Cuts the ring into at most MAXIMUM_PIECES fixed pieces of whole segments, for training files, and leaves out
        those that have not changed since `steps` was `since_steps`.

        Yields:
            The first row of a piece, which is its name; copies of what is READY in it: `rows` [L] int64 and the fields
            [L, N, ...], but final_observation [E, *shape]: only those that were written.
        """
        for rows in torch.split(torch.arange(self._rows), self._horizon * -(-self._segments // MAXIMUM_PIECES)):
            age = self._age(rows * self._count)
            newest_age = int(torch.where(age < self.size, age, -1).max())
            # What was the newest row at `since_steps` may have been marked afterwards: it counts as changed.
            if newest_age >= 0 and self.steps - self.size + newest_age + self._count >= since_steps:
                packed = pack(self._rings, rows[age < self.size], self._horizon)
                yield int(rows[0]), {"layout": self._layout(), **packed}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts one of `segments` back; other rows, and final observations that were never written, are not touched.

        Raises InvalidArgument where it is of a memory of another layout.
        """
        layout = tensors.get("layout")
        if layout is None or not torch.equal(layout.cpu(), self._layout()):
            raise InvalidArgument(LAYOUT_MISMATCH)
        for name, ring in self._rings.items():
            found = tensors.get(name)
            if found is None or found.dtype != ring.dtype or found.shape[1:] != ring.shape[1 + (name == FINAL) :]:
                raise InvalidArgument(LAYOUT_MISMATCH)
        unpack(self._rings, tensors, self._horizon)
        self._restored[tensors["rows"]] = True

    def _layout(self) -> Tensor:
        return torch.tensor((self._rows, self._count, self._horizon))

    def state_dict(self) -> dict[str, Tensor]:
        """Counters and priorities: with `segments` all that an exact resume needs. What is FILLING counts as free."""
        return {
            "layout": self._layout(),
            "turns": torch.tensor((self.steps, self._newest, self._ready)),
            **{f"priorities.{name}": tensor.clone() for name, tensor in self._priorities.tensors().items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_dict` returned, after `restore` of all segments; `mark_truncated` is the caller's.

        Raises:
            InvalidArgument: It is of a memory of another layout.
            DataLoss: A READY row was not restored.
        """
        wanted = self.state_dict()
        fits = all(name in state and state[name].shape == tensor.shape for name, tensor in wanted.items())
        if not fits or not torch.equal(state["layout"].cpu(), wanted["layout"]):
            raise InvalidArgument(LAYOUT_MISMATCH)
        steps, newest, ready = state["turns"].tolist()
        rows = torch.arange((newest + 1 - ready) * self._horizon, (newest + 1) * self._horizon) % self._rows
        if not self._restored[rows].all():
            raise DataLoss(f"{int((~self._restored[rows]).sum())} rows of the saved replay memory are missing")
        self.steps, self._newest, self._ready, self._granted = steps, newest, ready, 0
        for name, tensor in self._priorities.tensors().items():
            tensor.copy_(state[f"priorities.{name}"])
