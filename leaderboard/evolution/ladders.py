"""Keeps trials in order, so that a decision does not look at each of them. Pure.

    ladders = Ladders()
    ladders.update(trial)                                  # after each event of the trial
    for rung in ladders.rungs([ladder], without=leader):   # from the highest down
        rung.best_waiting(quota)

A ladder is a group of trials that are compared with each other: fresh ones or forks, of one algorithm or of several.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from leaderboard.evolution.trials import Trial
from leaderboard.ranking.paired import ranked_score

RISE_SCORES = 3
"""Number of last scores that the rise of a trial is measured over, by their estimates."""


class Part(NamedTuple):
    """The trials that are always in the same ladder."""

    fresh: bool
    """Whether they began with new networks; False: with the networks of another trial."""
    algorithm: str


Ladder = Sequence[Part]


class Order:
    """Numbers of trials, by a value, the highest first; equal ones by number."""

    def __init__(self) -> None:
        self._keys: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Iterates over keys: the negative value, and the number."""
        return iter(self._keys)

    def add(self, value: float, number: int) -> None:
        """Adds a trial."""
        insort(self._keys, (-value, number))

    def remove(self, value: float, number: int) -> None:
        """Removes a trial that was added with this value."""
        position = bisect_left(self._keys, (-value, number))
        assert self._keys[position] == (-value, number), "only what was added is removed"
        del self._keys[position]

    def before(self, key: tuple[float, int]) -> int:
        """Returns how many trials come before a key."""
        return bisect_left(self._keys, key)

    def median(self) -> float:
        """Returns the median of the values; there must be one."""
        middle = len(self._keys) // 2
        upper = -self._keys[middle][0]
        return upper if len(self._keys) % 2 else (upper - self._keys[middle - 1][0]) / 2


@dataclass(frozen=True)
class _Standing:
    """Where a trial is listed."""

    part: Part
    reached: tuple[float, ...] = ()
    """Its estimates at the rungs that it has reached."""
    waits: int | None = None
    """Rung from which it may be promoted; None if from none."""
    rise: float = 0.0
    """How much it rose over its last scores; 0 unless it waits."""
    estimate: float | None = None
    """Its estimate, if it may continue and has a score."""


@dataclass
class _Lists:
    """The trials of one part."""

    reached: defaultdict[int, Order] = field(default_factory=lambda: defaultdict(Order))
    """Those that have reached a rung, by their estimate there."""
    waiting: defaultdict[int, Order] = field(default_factory=lambda: defaultdict(Order))
    """Those that may be promoted from a rung, by their estimate there."""
    risers: defaultdict[int, Order] = field(default_factory=lambda: defaultdict(Order))
    """The same, by their rise."""
    able: Order = field(default_factory=Order)
    """Those that may continue, by their estimate now."""


class Ladders:
    """The trials of a tournament in order.

    Attributes:
        training: Trials in training, by number.
        interrupted: Trials that have not reached the rung that they climbed to, and may continue, by number.
        fresh_counts: Number of trials that began with new networks, by algorithm.
    """

    def __init__(self) -> None:
        self.training: dict[int, Trial] = {}
        self.interrupted: dict[int, Trial] = {}
        self.fresh_counts: Counter[str] = Counter()
        self._trials: dict[int, Trial] = {}
        self._standings: dict[int, _Standing] = {}
        self._lists: defaultdict[Part, _Lists] = defaultdict(_Lists)
        self._fresh: defaultdict[int, Order] = defaultdict(Order)

    def update(self, trial: Trial) -> None:
        """Updates the lists of a trial; must be called after each of its events."""
        number, old, new = trial.number, self._standings.get(trial.number), _standing_of(trial)
        may_continue = bool(trial.scores) and not trial.training and not trial.ended
        for listed, members in ((trial.training, self.training), (may_continue and trial.climbs, self.interrupted)):
            if listed:
                members[number] = trial
            else:
                members.pop(number, None)
        if old is None:
            self._trials[number] = trial
            self.fresh_counts[trial.algorithm] += trial.fresh
        if old != new:
            self._remove(number, old, new)
            self._add(number, old, new)
            self._standings[number] = new

    def _remove(self, number: int, old: _Standing | None, new: _Standing) -> None:
        if old is None:
            return
        lists = self._lists[old.part]
        if old.reached != new.reached[: len(old.reached)]:
            for rung, value in enumerate(old.reached):
                lists.reached[rung].remove(value, number)
                if old.part.fresh:
                    self._fresh[rung].remove(value, number)
        if old.waits is not None:
            lists.waiting[old.waits].remove(old.reached[old.waits], number)
            lists.risers[old.waits].remove(old.rise, number)
        if old.estimate is not None:
            lists.able.remove(old.estimate, number)

    def _add(self, number: int, old: _Standing | None, new: _Standing) -> None:
        lists = self._lists[new.part]
        begin = len(old.reached) if old and old.reached == new.reached[: len(old.reached)] else 0
        for rung in range(begin, len(new.reached)):
            lists.reached[rung].add(new.reached[rung], number)
            if new.part.fresh:
                self._fresh[rung].add(new.reached[rung], number)
        if new.waits is not None:
            lists.waiting[new.waits].add(new.reached[new.waits], number)
            lists.risers[new.waits].add(new.rise, number)
        if new.estimate is not None:
            lists.able.add(new.estimate, number)

    # --- all trials -----------------------------------------------------------------------------------------------

    def fresh_at(self, rung: int) -> Order:
        """Returns the fresh trials of all algorithms that have reached a rung, by their estimate there."""
        return self._fresh[rung]

    def able(self, but: Container[str] = ()) -> Iterator[Trial]:
        """Yields the trials that may continue and have a score, best first, but those of some algorithms."""
        lists = [lists.able for part, lists in self._lists.items() if part.algorithm not in but]
        return (self._trials[number] for _, number in merge(*lists))

    def count_able(self, algorithm: str) -> int:
        """Returns how many trials of an algorithm may continue and have a score."""
        return sum(len(self._lists[Part(fresh, algorithm)].able) for fresh in (False, True))

    # --- ladders --------------------------------------------------------------------------------------------------

    def parts(self, *, fresh: bool, but: Container[str], without: Trial | None) -> list[Part]:
        """Returns the parts with trials on a rung, by algorithm.

        Args:
            fresh: Whether the trials began with new networks.
            but: Algorithms that are left out.
            without: A trial that is left out.
        """
        found = sorted(part for part in self._lists if part.fresh is fresh and part.algorithm not in but)
        return [part for part in found if self.reached((part,), 0, without)]

    def reached(self, ladder: Ladder, rung: int, without: Trial | None) -> int:
        """Returns how many trials of a ladder have reached a rung."""
        left_out = without is not None and _part_of(without) in ladder and rung < len(without.at_rung)
        return sum(len(self._lists[part].reached[rung]) for part in ladder) - left_out

    def rungs(self, ladders: Sequence[Ladder], without: Trial | None = None) -> Iterator["Rung"]:
        """Yields the rungs of ladders that trials have reached, from the highest down.

        Args:
            ladders: The ladders.
            without: A trial that climbs none of them.
        """
        parts = {part for ladder in ladders for part in ladder}
        highest = max((rung for part in parts for rung in self._lists[part].reached), default=-1)
        for rung in range(highest, -1, -1):
            for ladder in ladders:
                if size := self.reached(ladder, rung, without):
                    yield Rung(self, ladder, rung, size, without)

    def best_on(self, rung: "Rung") -> tuple[Trial, int] | None:
        """Returns the best trial that may be promoted from a rung, and how many on the rung are better."""
        lists = [self._lists[part] for part in rung.ladder]
        key = _first((one.waiting[rung.number] for one in lists), rung.without)
        if key is None:
            return None
        better = sum(one.reached[rung.number].before(key) for one in lists)
        out = rung.without
        if out is not None and _part_of(out) in rung.ladder and rung.number < len(out.at_rung):
            better -= (-out.at_rung[rung.number], out.number) < key
        return self._trials[key[1]], better

    def riser_on(self, rung: "Rung") -> Trial | None:
        """Returns the trial that rose most, of those that may be promoted from a rung."""
        key = _first((self._lists[part].risers[rung.number] for part in rung.ladder), rung.without)
        return None if key is None else self._trials[key[1]]


@dataclass(frozen=True)
class Rung:
    """The trials of a ladder that have reached a rung."""

    _ladders: Ladders
    ladder: Ladder
    number: int
    size: int
    without: Trial | None

    def best_waiting(self, quota: int) -> Trial | None:
        """Returns the best trial that may be promoted if it is among this many best; None if there is none."""
        found = self._ladders.best_on(self)
        return found[0] if found and found[1] < quota else None

    def riser(self) -> Trial | None:
        """Returns the trial that rose most, of those that may be promoted; None if there is none."""
        return self._ladders.riser_on(self)


def _first(orders: Iterable[Order], without: Trial | None) -> tuple[float, int] | None:
    """Returns the first key of all orders, but that of one trial."""
    firsts = (next((key for key in order if without is None or key[1] != without.number), None) for order in orders)
    return min((key for key in firsts if key is not None), default=None)


def _part_of(trial: Trial) -> Part:
    return Part(trial.fresh, trial.algorithm)


def _standing_of(trial: Trial) -> _Standing:
    able = not trial.ended
    waits = trial.rung if able and not trial.training and trial.rung < len(trial.at_rung) else None
    rise = trial.estimate - ranked_score(trial.scores[-RISE_SCORES:][0]) if waits is not None else 0.0
    estimate = trial.estimate if able and trial.scores else None
    return _Standing(_part_of(trial), tuple(trial.at_rung), waits, rise, estimate)
