"""Decides what the next agent of a race is: the strategy `incumbent`. Pure.

A pod that asks for work gets the first of these that applies:
    1. the founder of an algorithm that has none, or whose founder failed without a score
    2. the incumbent, if no pod trains it (with a single pod: if it has had less than its share)
    3. the next of `algorithms.NAME.starts`; the founder has the first one
    4. a founder that has had less than its share
    5. a challenger whose agent ended on the way to a rung, from its newest score, unless its last two agents failed
    6. the best free trial of a rung that may be promoted, from the highest rung down
    7. a new challenger: fresh, or a fork of the incumbent
Nothing is started that could not be scored before the end.
"""

from collections import Counter
from itertools import chain
from random import Random

from leaderboard.evolution.incumbent.forks import fork_values
from leaderboard.evolution.incumbent.race import IncumbentRace
from leaderboard.evolution.ladders import Ladder
from leaderboard.evolution.mutation import describe_changes
from leaderboard.evolution.rungs import (
    algorithm_by_time,
    first_steps,
    interrupted,
    ladders_of_fresh,
    promoted,
    quota_of,
)
from leaderboard.evolution.space import movable_spaces
from leaderboard.evolution.strategy import Child, Continue, Fresh, NoWork, Situation
from leaderboard.evolution.trials import ClockReading, Trial
from leaderboard.ranking.board import named
from leaderboard.seeding import happens

SHORTEST_QUANTA = 2
"""Shortest assignment of the incumbent, in quanta (multiples of the steps between two scores)."""
FOUNDER_QUANTA = 4
"""Length of an assignment of a founder that does not lead, in quanta."""
MOST_FORKS = 8
"""Most forks of one parent on the first rung at the same time; with more pods, the next best trial is the parent."""


def propose(situation: Situation, random: Random) -> Fresh | Child | Continue | NoWork:
    """Returns the next agent, or that there is no work."""
    race = situation.trials
    assert isinstance(race, IncumbentRace), "the registry names the fold of this strategy"
    favors_riser = happens(random, situation.spec.evolution.riser_probability)
    founder = _missing_founder(situation, race)
    if founder:
        return Fresh(
            f"the founder of {founder}",
            founder,
            values_as_specified=True,
            environment_steps=first_steps(race),
            rung=0,
        )
    leader = _leader(situation, race)
    if leader is not None and not leader.training and leader.scores and _gets_its_share(leader, race, situation.clock):
        quanta = max(SHORTEST_QUANTA, int(race.quanta(leader) / 2))
        return _continue(leader, f"continues the incumbent {named(leader.newest)}", quanta * race.quantum)
    if leader is not None and race.ends_unscored(leader, situation.clock):
        return NoWork("the tournament ends before another agent could be scored")
    return (
        _untried_start(situation, race)
        or _founder_with_time(situation, race, leader)
        or interrupted(race, situation.left, without=leader)
        or _promotion(situation, race, leader, favors_riser=favors_riser)
        or _challenger(situation, race, leader, random)
    )


def _missing_founder(situation: Situation, race: IncumbentRace) -> str:
    """Returns an algorithm without a founder; empty if each has one."""
    algorithms = situation.spec.algorithms
    names = sorted(name for name in algorithms if algorithms[name].ratio > 0 and name not in situation.left)
    turn = situation.turn.algorithm
    missing = [name for name in names if race.lacks_founder(name)]
    return turn if turn in missing else next(iter(missing), "")


def _untried_start(situation: Situation, race: IncumbentRace) -> Fresh | None:
    """Returns a challenger with the next values that the specification lists as known to be good; None if all are
    tried.
    """
    for name, algorithm in sorted(situation.spec.algorithms.items()):
        position = race.started(name)
        if algorithm.ratio > 0 and name not in situation.left and position < len(algorithm.starts):
            steps = first_steps(race)
            return Fresh(f"starts[{position}] of {name} is next", name, environment_steps=steps, rung=0)
    return None


def _leader(situation: Situation, race: IncumbentRace) -> Trial | None:
    """Returns the incumbent; if its algorithm has been eliminated, the best trial of another one."""
    incumbent = race.incumbent
    if incumbent is None or incumbent.algorithm not in situation.left:
        return incumbent
    return race.best(but=situation.left)


def _gets_its_share(leader: Trial, race: IncumbentRace, clock: ClockReading) -> bool:
    """Whether the incumbent is next: always, unless a single pod divides its time between it and challengers. A single
    pod that has grown gives cores to challengers when the incumbent stalls.
    """
    if race.in_training() or race.grows:
        return True
    evolution = race.spec.evolution
    begin, end = evolution.exploration_begin, evolution.exploration_end
    explored = end + (begin - end) * max(0.0, 1 - clock.share)
    total = sum(one.environment_steps for one in race.by_number.values())
    # A challenger that took over has trained little. What the incumbents before it had counts as well.
    trained = race.incumbent_steps if leader is race.incumbent else leader.environment_steps
    return trained <= (1 - explored) * total


def _continue(trial: Trial, reason: str, steps: int) -> Continue:
    return Continue(trial.newest, reason, environment_steps=steps)


def _founder_with_time(situation: Situation, race: IncumbentRace, leader: Trial | None) -> Continue | None:
    """Returns the continuation of the founder that has trained least, if one has not had its share."""
    founders = [race.by_number[number] for name, number in race.founders.items() if name not in situation.left]
    waiting = [
        one
        for one in founders
        if one is not leader
        and one.scores
        and not one.training
        and not one.ended
        # One that ended on the way to a rung continues to this rung, see `interrupted`.
        and not one.climbs
        and race.founder_time_left(one, situation.clock)
    ]
    if not waiting:
        return None
    founder = min(waiting, key=lambda one: (race.time_of(one), one.number))
    reason = f"the founder of {founder.algorithm} keeps its share: continues {named(founder.newest)}"
    return _continue(founder, reason, FOUNDER_QUANTA * race.quantum)


# --- rungs -------------------------------------------------------------------------------------------------------


def _promotion(
    situation: Situation, race: IncumbentRace, leader: Trial | None, *, favors_riser: bool
) -> Continue | None:
    """Returns the continuation of a trial that is promoted to the next rung; None if none may be."""
    for rung in race.ladders.rungs(_ladders(situation, race, leader), without=leader):
        if favors_riser and rung.size > 1 and (riser := rung.riser()):
            return promoted(race, riser, "rose most over its last scores")
        quota = quota_of(rung.size, situation.spec.evolution)
        if chosen := rung.best_waiting(quota):
            return promoted(race, chosen, f"is among the best {quota} of {rung.size}")
    return None


def _ladders(situation: Situation, race: IncumbentRace, leader: Trial | None) -> list[Ladder]:
    """Returns the ladders that challengers climb.

    Forks and fresh challengers climb separate ladders: forks start near the incumbent, so fresh ones would never be
    promoted among them.
    """
    forks = race.ladders.parts(fresh=False, but=situation.left, without=leader)
    return [forks, *ladders_of_fresh(race, situation.left, leader)]


# --- new challengers ---------------------------------------------------------------------------------------------


def _challenger(situation: Situation, race: IncumbentRace, leader: Trial | None, random: Random) -> Fresh | Child:
    evolution = situation.spec.evolution
    steps = first_steps(race)
    parent = _parent(situation, race, leader)
    if parent is None or happens(random, fresh_probability(race, parent, situation.clock)):
        algorithm = algorithm_by_time(situation, race)
        reason = f"a challenger; {algorithm} is furthest below its share of pod time" if algorithm else "a challenger"
        if reseeds := race.wants_founder_seed(algorithm or situation.turn.algorithm):
            reason += ", with the values of the founder and another seed"
        return Fresh(reason, algorithm, values_as_specified=reseeds, environment_steps=steps, rung=0)
    inherited = situation.values_of(parent.newest)
    spaces = movable_spaces(parent.algorithm, situation.spec.algorithms[parent.algorithm])
    values = fork_values(inherited, spaces, evolution, random)
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    whose = "the incumbent" if parent is leader else "a challenger"
    reason = f"fork of {whose} {named(parent.newest)}; {changes}"
    return Child(parent.newest, values, reason, environment_steps=steps, rung=0)


def _parent(situation: Situation, race: IncumbentRace, leader: Trial | None) -> Trial | None:
    """Returns the trial that the next fork starts from; None while nothing is scored."""
    able = race.ladders.able(situation.left)
    if leader is not None and leader.scores and not leader.ended:
        able = chain([leader], (one for one in able if one is not leader))
    forks = Counter(one.forked_from for one in race.in_training() if one.rung == 0)
    best = next(able, None)
    if best is None:
        return None
    return next((one for one in chain([best], able) if forks[one.number] < MOST_FORKS), best)


def fresh_probability(race: IncumbentRace, parent: Trial, clock: ClockReading) -> float:
    """Returns the probability that a new challenger is fresh and not a fork.

    It falls in a line from 1 to 0 at `fresh_until` of the objective (with pods that grow: of the time that challengers
    would have if the incumbent had one of the pods), and is 0 where a fresh agent could not catch up
    before the end. It is 1/2 if nothing says when the tournament ends: steps were trained, and no share of the
    objective is used up. The objective may have been changed since the tournament began.
    """
    evolution = race.spec.evolution
    if race.time_left(clock) * evolution.catch_up < race.lineage_duration_of(parent):
        return 0.0
    if clock.share == 0 and clock.environment_steps > 0:
        return 0.5
    share = race.challenged_share(clock)
    return max(0.0, 1 - share / evolution.fresh_until) if evolution.fresh_until > 0 else 0.0
