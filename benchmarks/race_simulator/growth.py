"""Lets the pod of the incumbent grow and shrink in a simulated race, by the decisions of the orchestrator.

A pod of c cores trains c^exponent times as fast as one of one core. A change interrupts the training of the agent that
changes pods. The pods that stop for it give their agents back, and the next free pods continue them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from leaderboard.evolution.incumbent.improvement import improvement_of
from leaderboard.evolution.trials import Trials
from orchestrator.decisions.pod_sizes.changes import ChangeHistory, Promise, Resize, Room, SizedPod, SizeLimits, decide
from orchestrator.decisions.pod_sizes.first_pods import grow_first_pods
from orchestrator.decisions.pool_size import StartPod
from orchestrator.decisions.resources import Resources

IMPROVING_SHARE, STALLED_SHARE = 0.7, 0.1
"""Defaults of `pod.improving_share` and `stalled_share`."""
GAP_SECONDS = 0.25
"""Interruption by a change; 0.25 s and 0.08 s were measured between pods that are processes."""
PLENTY_BYTES = 1 << 50
RACE = "race"
"""Name of the tournament in the decisions of the orchestrator."""


@dataclass(frozen=True)
class GrowthRules:
    """What a change of a pod's size is worth and costs."""

    exponent: float
    """A pod of c cores trains c to this power times as fast."""
    gap_seconds: float = GAP_SECONDS
    shared: bool = True
    """Whether the new pod starts on the cores of the old one, as on one machine; if not, as on a full cluster."""

    def speed(self, cores: float) -> float:
        """Returns the training per quantum of a pod, compared with one of one core."""
        return cores**self.exponent


@dataclass
class Growth:
    """The changes of one race.

    growth = Growth(rules, pods=8)
    change = growth.decide(trials, sized_pods, free_cores, running_seconds)
    """

    rules: GrowthRules
    pods: int
    """Cores of the tournament: pods of one core at its begin."""
    clock_seconds: float = 0.0
    """If above 0, what is moved to the incumbent follows the clock alone, and not whether it improves: its share of the
    cores rises from STALLED_SHARE at the start to IMPROVING_SHARE after these seconds."""
    changes: int = 0
    _last_scores: int | None = field(default=None, repr=False)

    def first_sizes(self) -> list[float]:
        """Returns the cores of each pod that the orchestrator would start first, for a race with one founder."""
        starts = [StartPod(RACE, "") for _ in range(self.pods)]
        grown = grow_first_pods(starts, {RACE: self._limits(0.0)}, [Resources(float(self.pods), PLENTY_BYTES, 0)])
        return [start.cores or 1.0 for start in grown if isinstance(start, StartPod)]

    def decide(
        self, trials: Trials | None, pods: Sequence[SizedPod], free_cores: float, running_seconds: float
    ) -> Resize | None:
        """Returns the change that the orchestrator would make now; None if it would make none."""
        improvement = improvement_of(trials) if trials is not None else None
        if improvement is None:
            return None
        trial = trials.of(improvement.agent_id) if trials is not None else None
        promise = Promise(
            improvement.agent_id,
            improvement.improving,
            improvement.scores,
            improvement.reason,
            trial.number if trial else None,
        )
        limits = self._limits(running_seconds)
        room = Room(free_cores, PLENTY_BYTES, shared=self.rules.shared)
        history = ChangeHistory(
            under_way=False,
            last_scores=self._last_scores,
            gap_seconds=[self.rules.gap_seconds] * self.changes,
            running_seconds=running_seconds,
        )
        change, _ = decide(promise, pods, room, limits, history)
        if change:
            self.changes += 1
            self._last_scores = improvement.scores
        return change

    def _limits(self, running_seconds: float) -> SizeLimits:
        return SizeLimits(1.0, 1.0, float(self.pods), *self._shares(running_seconds))

    def _shares(self, running_seconds: float) -> tuple[float, float]:
        """Returns the shares of all cores for an incumbent that improves, and for one that does not."""
        if not self.clock_seconds:
            return IMPROVING_SHARE, STALLED_SHARE
        gone = min(1.0, running_seconds / self.clock_seconds)
        share = STALLED_SHARE + (IMPROVING_SHARE - STALLED_SHARE) * gone
        return share, share
