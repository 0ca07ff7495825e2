"""What a pod gets that asks for work in a race."""

import math
from collections import Counter
from collections.abc import Callable

import pytest
from trial_log import QUANTUM, SECONDS, Log, kind_of

from leaderboard.evolution.incumbent.choice import fresh_probability
from leaderboard.evolution.space import plain
from leaderboard.evolution.strategy import Child, Continue, Fresh, NoWork
from leaderboard.evolution.trials import ClockReading
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

MakeLog = Callable[..., Log]


def continued(answer: object) -> tuple[int, int]:
    """Number of the agent that an answer continues, and the quanta of the assignment."""
    assert isinstance(answer, Continue), answer
    return answer.parent.agent_number, answer.environment_steps // QUANTUM


def test_the_first_agent_is_the_founder_with_the_values_of_the_specification(log: Log) -> None:
    answer = log.next()
    assert isinstance(answer, Fresh)
    assert (answer.algorithm, answer.values_as_specified, answer.rung) == ("ppo", True, 0)
    assert answer.environment_steps == 2 * QUANTUM


def test_every_algorithm_gets_a_founder_before_anything_else(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}})
    seen = []
    for _ in range(2):
        answer = log.next()
        assert isinstance(answer, Fresh)
        assert answer.values_as_specified
        seen.append(answer.algorithm)
        log.fresh(answer.algorithm)
    assert sorted(seen) == ["a2c", "ppo"]
    third = log.next()
    assert "founder of" not in third.reason


@pytest.mark.parametrize(("seeds", "share", "starts"), [(3, 0.5, 0), (1, 0.5, 0), (3, 0.0, 0), (2, 0.5, 2)])
def test_the_first_challengers_have_the_values_of_the_founder_if_these_are_trusted(
    make_log: MakeLog, seeds: int, share: float, starts: int
) -> None:
    known_good = [{"learning_rate": 10.0 ** -(2 + number)} for number in range(starts)]
    table = {"starts": known_good, "hyperparameters": {"learning_rate": {"low": 1e-5, "high": 1e-1}}}
    log = make_log(algorithms={"ppo": table}, founder_seeds=seeds, founder_share=share, riser_probability=0.0)
    answers = []
    for _ in range(6):
        answers.append(log.next())
        log.fresh()
    as_specified = [isinstance(answer, Fresh) and answer.values_as_specified for answer in answers]
    others = seeds - 1 if share else 0
    tried = max(0, starts - 1)
    assert as_specified == [True, *[False] * tried, *[True] * others, *[False] * (5 - tried - others)]
    reason = "with the values of the founder and another seed"
    assert [reason in answer.reason for answer in answers[1:]] == as_specified[1:]


def test_an_algorithm_that_has_left_gets_no_founder(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}})
    log.fresh("ppo")
    answer = log.next(left={"a2c": "its agents failed"})
    assert not (isinstance(answer, Fresh) and answer.algorithm == "a2c")


def test_the_incumbent_goes_first_and_its_assignments_grow_with_its_training(log: Log) -> None:
    founder = log.fresh()
    log.fresh()
    last = log.finished(founder, 1.0, 2.0)
    assert continued(log.next()) == (0, 2)
    for _ in range(3):
        last = log.finished(log.again(last), 3.0, 4.0)
    assert continued(log.next()) == (last.number, 4)


def test_while_a_pod_trains_the_incumbent_the_others_get_challengers(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 1.0)
    assert log.kinds(20) == ["fresh"] * 20


def test_the_share_of_fresh_challengers_falls_from_one_to_zero(make_log: MakeLog) -> None:
    log = make_log(fresh_until=0.4, catch_up=1000.0, riser_probability=0.0)
    log.score(log.fresh(), 1.0)
    shares = []
    for seconds in (0.0, 200.0, 400.0, 900.0):
        log.seconds = seconds
        counts = Counter(log.kinds(400))
        shares.append(counts["fresh"] / 400)
    assert shares[0] == 1.0
    assert shares[1] == pytest.approx(0.5, abs=0.1)
    assert shares[2:] == [0.0, 0.0]


def test_a_fresh_challenger_that_could_not_catch_up_is_not_started(make_log: MakeLog) -> None:
    log = make_log(fresh_until=1.0, riser_probability=0.0)
    founder = log.fresh()
    for _ in range(60):
        log.score(founder, 1.0)
    log.seconds = 390.0
    assert "fresh" in log.kinds()
    # The incumbent has trained for 600 s, and 590 s are left.
    log.seconds = 410.0
    assert set(log.kinds()) == {"fork"}


@pytest.mark.parametrize("objective", [{"wall_clock_duration": "1000s"}, {"target_return": 1.0}])
def test_half_of_the_challengers_are_fresh_while_the_end_is_unknown_whatever_the_objective_was(
    make_log: MakeLog, objective: dict[str, object]
) -> None:
    log = make_log(fresh_until=0.4, sections={"objective": objective})
    log.score(log.fresh(), 1.0)
    parent = log.race.by_number[0]
    assert fresh_probability(log.race, parent, ClockReading(running_seconds=50.0, environment_steps=5000)) == 0.5
    # The objective now ends by the clock.
    clock = ClockReading(running_seconds=500.0, environment_steps=5000, share=0.2)
    assert fresh_probability(log.race, parent, clock) == 0.5
    assert fresh_probability(log.race, parent, ClockReading(500.0, 5000, 0.3)) == pytest.approx(0.25)


def test_a_fork_changes_searched_values_only_and_some_forks_change_nothing(make_log: MakeLog) -> None:
    log = make_log(fresh_until=0.0, unchanged_probability=0.3, riser_probability=0.0)
    founder = log.fresh()
    log.score(founder, 1.0)
    values = {name: plain(value) for name, value in founder.hyperparameters.fields.items()}
    changed: Counter[str] = Counter()
    for seed in range(200):
        fork = log.next(seed)
        assert isinstance(fork, Child)
        different = {name for name, value in fork.hyperparameters.items() if value != values[name]}
        assert different <= {"learning_rate", "epochs"}
        changed["+".join(sorted(different))] += 1
    assert changed[""] == pytest.approx(60, abs=20)
    assert set(changed) == {"", "epochs", "learning_rate", "epochs+learning_rate"}


def test_one_in_three_of_a_rung_is_promoted_the_best_first(log: Log) -> None:
    log.score(log.fresh(), 100.0)
    for score in (10.0, 30.0):
        log.finished(log.fresh(), score, score)
    assert kind_of(log.next()) == "fresh", "a third of two is none"
    log.finished(log.fresh(), 20.0, 20.0)
    answer = log.next()
    assert continued(answer) == (2, 4)
    assert isinstance(answer, Continue)
    assert answer.rung == 1
    log.again(log.agents[2], rung=1)
    assert kind_of(log.next()) == "fresh", "the quota of this rung is used"


def test_the_highest_rung_with_a_promotion_goes_first(log: Log) -> None:
    log.score(log.fresh(), 100.0)
    for score in (10.0, 20.0, 30.0):
        log.finished(log.fresh(), score, score)
    for agent in log.agents[1:4]:
        log.finished(log.again(agent, rung=1), 40.0, 40.0, 40.0 + agent.number, 40.0)
    for score in (50.0, 60.0, 70.0):
        log.finished(log.fresh(), score, score)
    answer = log.next()
    assert isinstance(answer, Continue)
    assert answer.rung == 2


def test_forks_and_fresh_challengers_climb_separate_ladders(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 40.0)
    for score in (10.0, 20.0, 30.0):
        log.finished(log.fresh(), score, score)
    for score in (40.0, 41.0):
        log.finished(log.fork(founder), score, score)
    assert continued(log.next()) == (3, 4), "two forks promote none, and do not displace the best of three fresh ones"


def test_what_a_fork_inherited_counts_as_its_training_when_others_must_catch_up(make_log: MakeLog) -> None:
    log = make_log(fresh_until=1.0, riser_probability=0.0)
    founder = log.fresh()
    log.score(founder, 1.0)
    fork = log.fork(founder)
    for quanta in range(2):
        # It inherited the training of 57 quanta.
        log.score(fork, 50.0, environment_steps=(58 + quanta) * QUANTUM)
    assert log.race.incumbent is log.race.by_number[fork.number]
    log.seconds = 395.0
    assert "fresh" in log.kinds()
    log.seconds = 420.0
    assert set(log.kinds()) == {"fork"}


def test_a_riser_may_be_promoted_although_others_are_better(make_log: MakeLog) -> None:
    log = make_log(riser_probability=1.0)
    log.score(log.fresh(), 100.0)
    log.finished(log.fresh(), 50.0, 50.0)
    log.finished(log.fresh(), 0.0, 20.0)
    log.finished(log.fresh(), 60.0, 60.0)
    answer = log.next()
    assert continued(answer)[0] == 2
    assert "rose most" in answer.reason


def test_a_deposed_founder_keeps_its_share_of_a_pod(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.finished(founder, 1.0, 1.0)
    for _ in range(2):
        log.score(challenger, 50.0)
    # The founder has trained for 20 s; its share is half of the 1,000 s, and comes first.
    log.seconds = 30.0
    answer = log.next()
    assert continued(answer) == (0, 4)
    assert "keeps its share" in answer.reason
    founder = log.finished(log.again(founder), *[1.0] * 47)
    assert continued(log.next()) == (founder.number, 4), "it has trained for 490 s"
    log.finished(log.again(founder), 1.0)
    assert "share" not in log.next().reason


def test_where_the_end_is_unknown_a_founder_keeps_its_share_of_the_time_so_far(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.finished(founder, 1.0, 1.0)
    for _ in range(2):
        log.score(challenger, 50.0)
    log.horizon = math.inf
    log.seconds = 30.0
    assert kind_of(log.next()) == "fresh", "it has trained for 20 s"
    log.seconds = 50.0
    assert continued(log.next()) == (0, 4)


def test_a_founder_that_fails_without_a_score_is_replaced(log: Log) -> None:
    log.end(log.fresh(), failed=True)
    answer = log.next()
    assert isinstance(answer, Fresh)
    assert answer.values_as_specified


def test_a_founder_that_ended_before_its_first_rung_climbs_to_it_within_its_share(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}}, founder_share=1.0)
    log.score(log.fresh("ppo"), 100.0)
    # A rung ends at 2 quanta.
    founder = log.finished(log.fresh("a2c"), 1.0)
    log.seconds = 500.0
    answer = log.next()
    assert continued(answer) == (founder.number, 1)
    assert answer.rung == 0, "without a rung it could never be promoted"
    log.finished(log.again(founder, rung=0), 1.0)
    assert "keeps its share" in log.next().reason


def test_without_a_share_the_founder_is_a_challenger_like_any_other(make_log: MakeLog) -> None:
    log = make_log(founder_share=0.0, riser_probability=0.0)
    founder, challenger = log.fresh(), log.fresh()
    log.finished(founder, 1.0, 1.0)
    for _ in range(2):
        log.score(challenger, 50.0)
    log.seconds = 300.0
    assert set(log.kinds(20)) <= {"fresh", "fork"}


def test_a_single_pod_divides_its_time(make_log: MakeLog) -> None:
    log = make_log(exploration_begin=0.5, exploration_end=0.1, riser_probability=0.0)
    last = log.finished(log.fresh(), 1.0, 1.0)
    shares = []
    for seconds in (0.0, 900.0):
        log.seconds = seconds
        own = steps = 0
        for number in range(60):
            answer = log.next(number)
            quanta = getattr(answer, "environment_steps", 0) // QUANTUM
            if isinstance(answer, Continue) and answer.parent.agent_id == last.agent_id:
                last = log.finished(log.again(last), *[100.0] * quanta)
                own += quanta
            elif isinstance(answer, Continue):
                parent = log.agents[answer.parent.agent_number]
                log.finished(log.again(parent, answer.rung), *[0.0] * quanta)
            else:
                log.finished(log.fresh(), *[0.0] * quanta)
            steps += quanta
        shares.append(own / steps)
    assert shares[0] == pytest.approx(0.5, abs=0.1)
    assert shares[1] > 0.7


def test_a_fork_that_takes_over_inherits_the_time_that_a_single_pod_has_spent_on_incumbents(make_log: MakeLog) -> None:
    log = make_log(exploration_begin=0.5, exploration_end=0.5, riser_probability=0.0)
    founder = log.finished(log.fresh(), *[1.0] * 10)
    fork = log.finished(log.fork(founder), 100.0, 100.0)
    assert log.race.incumbent is log.race.by_number[fork.number]
    # Incumbents have had 10 of 12 quanta.
    assert not any("continues the incumbent" in log.next(seed).reason for seed in range(20))
    for _ in range(4):
        log.finished(log.fresh(), 1.0, 1.0)
    assert continued(log.next()) == (fork.number, 2)


def test_nothing_is_started_that_could_not_be_scored_before_the_end(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 1.0)
    log.seconds = 985.0
    assert kind_of(log.next()) == "fork"
    log.seconds = 989.0
    answer = log.next()
    assert isinstance(answer, NoWork)
    log.fresh()
    log.end(founder)
    assert kind_of(log.next()) == "continue", "the incumbent itself still gains from the time that is left"


def test_with_many_pods_a_parent_has_at_most_eight_forks_on_the_first_rung(make_log: MakeLog) -> None:
    log = make_log(fresh_until=0.0, riser_probability=0.0)
    founder = log.fresh()
    log.score(founder, 50.0)
    second = log.fresh()
    log.score(second, 40.0)
    parents = []
    for number in range(10):
        answer = log.next(number)
        assert isinstance(answer, Child)
        parents.append(answer.parent.agent_number)
        log.fork(log.agents[answer.parent.agent_number])
    assert parents == [0] * 8 + [1] * 2


def test_no_trial_of_an_algorithm_that_has_left_continues(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}}, riser_probability=0.0)
    log.finished(log.fresh("a2c"), 90.0, 90.0)
    log.finished(log.fresh("ppo"), 10.0, 10.0)
    for seed in range(20):
        answer = log.next(seed, left={"a2c": "halved"})
        assert isinstance(answer, Continue)
        assert answer.parent.algorithm == "ppo"


def test_known_good_starts_are_the_first_challengers(make_log: MakeLog) -> None:
    starts = [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}, {"learning_rate": 1e-2}]
    log = make_log(
        algorithms={"ppo": {"starts": starts, "hyperparameters": {"learning_rate": {"low": 1e-5, "high": 1e-1}}}}
    )
    assert "founder" in log.next().reason
    founder = log.fresh()
    for position in (1, 2):
        answer = log.next()
        assert isinstance(answer, Fresh)
        assert answer.reason == f"starts[{position}] of ppo is next"
        log.fresh()
    assert "starts[" not in log.next().reason
    log.finished(founder, 1.0, 2.0)
    assert isinstance(log.next(), Continue)


def test_a_founder_that_was_lost_uses_up_no_start(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {"starts": [{"learning_rate": 1e-4}, {"learning_rate": 1e-3}]}})
    log.end(log.fresh(), failed=True)
    assert "founder" in log.next().reason
    log.fresh()
    assert log.next().reason == "starts[1] of ppo is next"


def test_a_fresh_challenger_has_the_algorithm_whose_pod_time_is_furthest_below_its_share(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}, "sac": {"ratio": 2.0}}, riser_probability=0.0)
    founders = {name: log.fresh(name) for name in ("ppo", "a2c", "sac")}
    for name, quanta in (("ppo", 6), ("a2c", 2), ("sac", 6)):
        log.finished(founders[name], *[1.0 if name == "ppo" else 0.0] * quanta)
    log.again(founders["ppo"])
    # Shares of 140 s are 35 s, 35 s and 70 s; they have taken 60 s, 20 s and 60 s.
    answers = [log.next(seed) for seed in range(20)]
    fresh = [answer for answer in answers if isinstance(answer, Fresh)]
    assert {answer.algorithm for answer in fresh} == {"a2c"}
    assert "a2c is furthest below its share of pod time" in fresh[0].reason
    without = [log.next(seed, left={"a2c": "its agents failed"}) for seed in range(20)]
    # Shares of 120 s are 40 s and 80 s.
    assert {answer.algorithm for answer in without if isinstance(answer, Fresh)} == {"sac"}


def test_the_time_since_an_agent_was_handed_out_counts_as_pod_time(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}}, riser_probability=0.0, founder_share=0.0)
    ppo, a2c = log.fresh("ppo"), log.fresh("a2c")
    log.finished(ppo, 1.0, 1.0, 1.0)
    log.finished(a2c, 0.0, 0.0)
    first = log.again(ppo)
    assert {answer.algorithm for answer in map(log.next, range(20)) if isinstance(answer, Fresh)} == {"a2c"}
    log.fresh("a2c")
    log.finished(first, 1.0)
    log.seconds += 60.0
    log.again(ppo)
    answers = [answer.algorithm for answer in map(log.next, range(20)) if isinstance(answer, Fresh)]
    # a2c has taken 20 s and the 60 s of the agent that is not scored yet.
    assert set(answers) == {"ppo"}


# --- pods that grow ----------------------------------------------------------------------------------------------

GROWING = {"pod": {"cores": 2, "maximum_cores": 12}}


def train(log: Log, agent: Agent, quanta: int, cores: float) -> None:
    """Trains an agent in a pod of this size; a quantum takes SECONDS of wall-clock time."""
    log.cores = cores
    for _ in range(quanta):
        log.seconds += SECONDS
        log.score(agent, 1.0)


@pytest.mark.parametrize("small_quanta", [0, 30])
def test_work_is_given_out_until_the_incumbent_could_not_be_scored_at_its_present_speed(
    make_log: MakeLog, small_quanta: int
) -> None:
    log = make_log(sections=GROWING)
    founder = log.fresh()
    train(log, founder, small_quanta, cores=2)
    train(log, founder, 20, cores=12)
    # A quantum takes 10 s of the clock, and 60 s of pod time.
    log.seconds = 987.0
    assert kind_of(log.next()) == "fork"
    log.seconds = 989.0
    assert kind_of(log.next()) == "no work"


def test_a_fresh_challenger_may_catch_up_in_the_wall_clock_time_of_the_incumbent(make_log: MakeLog) -> None:
    log = make_log(sections=GROWING, fresh_until=1.0, riser_probability=0.0)
    founder = log.fresh()
    train(log, founder, 40, cores=12)
    # It has trained for 400 s of the clock, which are 2,400 s of pod time.
    log.seconds = 590.0
    assert "fresh" in log.kinds()
    log.seconds = 610.0
    assert set(log.kinds()) == {"fork"}


@pytest.mark.parametrize(("waited", "seconds"), [(0.0, 10.0), (500.0, 60.0), (-500.0, 10.0)])
def test_a_pause_between_two_scores_counts_at_most_the_recorded_compute(
    make_log: MakeLog, waited: float, seconds: float
) -> None:
    log = make_log(sections=GROWING)
    founder = log.fresh()
    train(log, founder, 1, cores=12)
    log.seconds += waited
    train(log, founder, 1, cores=12)
    trial = log.race.by_number[0]
    assert log.race.quantum_of(trial) == pytest.approx(seconds)
    assert log.race.duration_of(trial) == pytest.approx(10.0 + seconds)


def test_the_time_of_a_continuation_counts_from_its_own_beginning(make_log: MakeLog) -> None:
    log = make_log(sections=GROWING)
    founder = log.fresh()
    train(log, founder, 2, cores=12)
    log.end(founder)
    log.seconds += 200.0
    train(log, log.again(founder), 3, cores=2)
    assert log.race.duration_of(log.race.by_number[0]) == pytest.approx(50.0)


def test_recorded_times_decide_nothing_if_pods_have_one_size(log: Log) -> None:
    founder = log.fresh()
    for seconds in (3.0, 500.0, 4.0):
        log.seconds += seconds
        log.score(founder, 1.0)
    trial = log.race.by_number[0]
    assert (log.race.duration_of(trial), log.race.quantum_of(trial)) == (30.0, 10.0)
    assert (trial.wall_seconds, trial.step_seconds) == (0.0, 0.0)
