from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from leaderboard.ranking.compute import compute_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import PodSpec

ONE_CORE = PodSpec(cores=1.0)
MakeCandidate = Callable[..., Candidate]


def started(number: int, start: str = "") -> Agent:
    return Agent(agent_id=f"cartpole-abc123-a{number}", starting_checkpoint=Checkpoint(manifest_digest=start))


@pytest.fixture
def submit(make_candidate: MakeCandidate) -> Callable[..., Candidate]:
    def make(number: int, name: str, steps: int, **others: Any) -> Candidate:
        return make_candidate(number, 0.0, candidate_id=name, agent_environment_steps=steps, **others)

    return make


def test_what_an_ancestor_trained_after_its_child_began_is_not_behind_the_champion(submit: Any) -> None:
    agents = [started(0), started(1, "early"), started(2)]
    submissions = [submit(0, "early", 100), submit(0, "late", 900), submit(1, "best", 50), submit(2, "other", 400)]
    assert compute_of(agents, submissions, ["best"], ONE_CORE).champion_environment_steps == 150
    assert compute_of(agents, submissions, ["late"], ONE_CORE).champion_environment_steps == 900


def test_steps_that_several_members_share_count_once(submit: Any) -> None:
    agents = [started(0), started(1, "early"), started(2, "late")]
    submissions = [submit(0, "early", 100), submit(0, "late", 300), submit(1, "one", 50), submit(2, "two", 70)]
    assert compute_of(agents, submissions, ["one", "two"], ONE_CORE).champion_environment_steps == 300 + 50 + 70
    assert compute_of(agents, submissions, ["two", "one"], ONE_CORE).champion_environment_steps == 300 + 50 + 70


def test_steps_of_another_tournament_do_not_count(submit: Any) -> None:
    agents = [started(0, "of another tournament")]
    assert compute_of(agents, [submit(0, "best", 100)], ["best"], ONE_CORE).champion_environment_steps == 100


def test_candidates_that_do_not_exist_have_no_steps(submit: Any) -> None:
    assert compute_of([started(0)], [submit(0, "best", 100)], ["gone"], ONE_CORE).champion_environment_steps == 0
    assert compute_of([], [], [], ONE_CORE).champion_environment_steps == 0


def test_pod_time_is_that_of_the_last_submission_of_each_agent(submit: Any) -> None:
    submissions = [
        submit(0, "a", 1, core_seconds=20.0, evaluation_seconds=1.0),
        submit(1, "b", 1, core_seconds=10.0, evaluation_seconds=2.0),
        submit(0, "c", 2, core_seconds=40.0, evaluation_seconds=3.0),
    ]
    found = compute_of([started(0), started(1)], submissions, [], PodSpec(cores=2.0))
    assert (found.pod_seconds, found.evaluation_seconds) == (25.0, 6.0)


def test_the_time_of_evaluations_is_unknown_if_one_of_them_is(submit: Any) -> None:
    submissions = [submit(0, "a", 1, evaluation_seconds=1.0), submit(0, "b", 2)]
    assert not compute_of([started(0)], submissions, [], ONE_CORE).HasField("evaluation_seconds")


def test_an_evaluation_in_a_grown_pod_counts_as_many_times_as_the_pod_has_cores(submit: Any) -> None:
    agent = started(0)
    agent.create_time.FromSeconds(100)
    submissions = [
        submit(0, "small", 1, core_seconds=20.0, evaluation_seconds=1.0, submit_time=Timestamp(seconds=110)),
        submit(0, "grown", 2, core_seconds=60.0, evaluation_seconds=1.0, submit_time=Timestamp(seconds=120)),
        submit(0, "late", 3, core_seconds=100.0, evaluation_seconds=1.0, submit_time=Timestamp(seconds=121)),
    ]
    found = compute_of([agent], submissions, [], PodSpec(cores=2.0, minimum_cores=2.0, maximum_cores=4.0))
    assert (found.pod_seconds, found.evaluation_seconds) == (50.0, 1.0 + 2.0 + 2.0)
