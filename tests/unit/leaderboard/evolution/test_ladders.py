"""The order of trials on rungs, compared with a search through all of them."""

import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import pytest
from trial_log import Log

from leaderboard.evolution.ladders import RISE_SCORES, Ladders, Part
from leaderboard.evolution.rungs import RungTrials, ladders_of_fresh, time_taken_by
from leaderboard.evolution.trials import Trial
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MakeLog = Callable[..., Log]
PPO, A2C, FORKS = Part(True, "ppo"), Part(True, "a2c"), Part(False, "ppo")


def at(number: int, algorithm: str, *estimates: float, forked_from: int | None = None) -> Trial:
    """A trial that waits on the rung that it has reached."""
    scores = [Candidate(score=value, estimate=value) for value in estimates]
    return Trial(number, algorithm, forked_from, scores=scores, rung=len(estimates) - 1, at_rung=list(estimates))


def ladders_with(*trials: Trial) -> Ladders:
    ladders = Ladders()
    for trial in trials:
        ladders.update(trial)
    return ladders


def test_rungs_come_from_the_highest_down_and_the_best_of_each_comes_first() -> None:
    ladders = ladders_with(at(0, "ppo", 5.0, 1.0), at(1, "ppo", 9.0), at(2, "ppo", 5.0), at(3, "ppo", 7.0, 2.0))
    found = [(rung.number, rung.size, rung.best_waiting(4)) for rung in ladders.rungs([[PPO]])]
    assert [(number, size, best and best.number) for number, size, best in found] == [(1, 2, 3), (0, 4, 1)]


def test_a_trial_is_promoted_once_from_a_rung_and_not_while_it_trains_or_after_it_has_ended() -> None:
    trials = [at(number, "ppo", 1.0) for number in range(4)]
    ladders = ladders_with(*trials)
    trials[0].rung, trials[1].training, trials[2].ended = 1, True, "failed"
    for trial in trials:
        ladders.update(trial)
    (rung,) = ladders.rungs([[PPO]])
    assert rung.best_waiting(3) is None, "the last of four equal ones"
    assert rung.best_waiting(4) is trials[3]


def test_algorithms_are_compared_once_each_has_a_trial_above_the_first_rung(make_log: MakeLog) -> None:
    trials: RungTrials = make_log(strategy="asha").race
    for trial in (at(0, "ppo", 9.0, 9.0), at(1, "ppo", 8.0), at(2, "a2c", 1.0)):
        trials.ladders.update(trial)
    assert ladders_of_fresh(trials, ()) == [[A2C], [PPO]]
    assert ladders_of_fresh(trials, {"a2c"}) == [[PPO]]
    only = at(3, "a2c", 2.0, 2.0)
    trials.ladders.update(only)
    assert ladders_of_fresh(trials, ()) == [[A2C, PPO]]
    assert ladders_of_fresh(trials, (), without=only) == [[A2C], [PPO]]


def changed(trial: Trial, draw: random.Random) -> None:
    """Some event of a trial, also those that no strategy makes in this order."""
    kind = draw.choice(["score", "score", "train", "end", "reach", "reach", "fail", "depose"])
    if kind == "score":
        value = float(draw.randint(0, 5))
        trial.add_score(Candidate(score=value, estimate=value))
    elif kind == "train":
        trial.training, trial.rung = True, trial.rung + draw.randint(0, 1)
    elif kind == "end":
        trial.training = False
    elif kind == "reach" and trial.scores and len(trial.at_rung) == trial.rung:
        trial.at_rung.append(trial.estimate)
    elif kind == "fail" and draw.random() < 0.2:
        trial.ended = "failed"
    elif kind == "depose" and trial.scores:
        trial.rung = draw.randint(0, 3)
        trial.at_rung = [trial.estimate] * (trial.rung + 1)


def members_of(ladder: Sequence[Part], trials: Sequence[Trial], rung: int, without: Trial | None) -> list[Trial]:
    climbing = [one for one in trials if one is not without and len(one.at_rung) > rung]
    members = [one for one in climbing if Part(one.fresh, one.algorithm) in ladder]
    return sorted(members, key=lambda one: (-one.at_rung[rung], one.number))


def waiting(members: Sequence[Trial], rung: int) -> list[Trial]:
    return [one for one in members if one.rung == rung and not one.training and not one.ended]


def rise(trial: Trial) -> float:
    return trial.scores[-1].score - trial.scores[-RISE_SCORES:][0].score


def searched(
    ladders: Sequence[Sequence[Part]], trials: Sequence[Trial], without: Trial | None
) -> Iterator[tuple[int, int, list[Trial], Trial | None]]:
    """Yields number, size, all trials that wait with how many are better, and the riser of each rung."""
    for rung in reversed(range(max((len(one.at_rung) for one in trials), default=0))):
        for ladder in ladders:
            members = members_of(ladder, trials, rung, without)
            if members:
                free = waiting(members, rung)
                yield rung, len(members), members, max(free, key=lambda one: (rise(one), -one.number), default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_a_search_through_all_trials(seed: int) -> None:
    draw, ladders = random.Random(seed), Ladders()
    trials: list[Trial] = []
    for _ in range(150):
        if not trials or draw.random() < 0.2:
            trials.append(Trial(len(trials), draw.choice(["ppo", "a2c"]), draw.choice([None, 0])))
        else:
            changed(draw.choice(trials), draw)
        for trial in trials:
            ladders.update(trial)
        without = draw.choice([None, *trials])
        compared = draw.choice([[[FORKS, Part(False, "a2c")], [A2C], [PPO]], [[FORKS], [A2C, PPO]]])
        found = list(ladders.rungs(compared, without))
        expected = list(searched(compared, trials, without))
        assert [(one.number, one.size, one.riser()) for one in found] == [(n, size, up) for n, size, _, up in expected]
        for rung, (number, size, members, _) in zip(found, expected, strict=True):
            for quota in {0, size // 3, size}:
                assert rung.best_waiting(quota) is next(iter(waiting(members[:quota], number)), None)
            peers = [one.at_rung[number] for one in trials if one.fresh and len(one.at_rung) > number]
            assert len(ladders.fresh_at(number)) == len(peers)
            assert not peers or ladders.fresh_at(number).median() == median(peers)
        able = [one for one in trials if one.scores and not one.ended]
        assert list(ladders.able()) == sorted(able, key=lambda one: (-one.estimate, one.number))
        assert list(ladders.able({"ppo"})) == [one for one in ladders.able() if one.algorithm == "a2c"]
        assert ladders.count_able("ppo") == sum(one.algorithm == "ppo" for one in able)
        assert sorted(ladders.training) == [one.number for one in trials if one.training]
        assert ladders.fresh_counts["ppo"] == sum(one.fresh and one.algorithm == "ppo" for one in trials)


@pytest.mark.parametrize("strategy", ["asha", "incumbent"])
def test_the_lists_of_a_race_are_those_of_all_its_trials_after_each_event(make_log: MakeLog, strategy: str) -> None:
    draw, log = random.Random(3), make_log(strategy=strategy, algorithms={"ppo": {}, "a2c": {}})
    race: RungTrials = log.race
    for _ in range(250):
        running = [log.agents[trial.agents[-1].number] for trial in race.in_training()]
        idle = [trial for trial in race.by_number.values() if not trial.training and not trial.ended and trial.scores]
        event = draw.choice(["fresh", "score", "score", "score", "end", "again"])
        if event == "fresh" and len(running) < 6:
            log.fresh(draw.choice(["ppo", "a2c"]))
        elif event == "again" and idle:
            trial = draw.choice(idle)
            log.again(trial.agents[-1], rung=trial.rung + 1)
        elif event == "score" and running:
            log.score(draw.choice(running), float(draw.randint(0, 9)))
        elif event == "end" and running:
            agent = draw.choice(running)
            undo = race.before_ends([agent.agent_id])
            log.end(agent, failed=draw.random() < 0.2)
            if draw.random() < 0.3:
                undo()
        trials = [trial for _, trial in sorted(race.by_number.items())]
        assert race.in_training() == [trial for trial in trials if trial.training]
        able = [trial for trial in trials if trial.scores and not trial.ended]
        between = [trial.number for trial in able if trial.climbs and not trial.training]
        assert sorted(race.ladders.interrupted) == between
        assert list(race.ladders.able()) == sorted(able, key=lambda one: (-one.estimate, one.number))
        again = Ladders()
        for trial in trials:
            again.update(trial)
        parts = [[part] for part in race.ladders.parts(fresh=True, but=(), without=None)]
        assert [(one.number, one.size, one.best_waiting(1)) for one in race.ladders.rungs(parts)] == [
            (one.number, one.size, one.best_waiting(1)) for one in again.rungs(parts)
        ]
        for name in {trial.algorithm for trial in trials}:
            own = (one for one in trials if one.algorithm == name)
            assert race.time_taken(log.clock)[name] == pytest.approx(
                sum(time_taken_by(one, race, log.clock) for one in own)
            )
    assert len(race.by_number) > 10
