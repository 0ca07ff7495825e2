"""A walk through the lineage shows each step with what changed, what it gained and what it cost."""

from messages import agent, candidate

from podrace.dashboard import lineage
from podrace.dashboard.lineage import changes, walk
from podrace.dashboard.points import SubmissionPoints


def family(*agents):
    return {one.agent_id: one for one in agents}


def scored(*candidates):
    points = SubmissionPoints(0.0)
    for one in candidates:
        points.add(one)
    return points


THREE = family(
    agent(0, values={"learning_rate": 0.1, "gamma": 0.9}),
    agent(1, 0, {"learning_rate": 0.2, "gamma": 0.9}),
    agent(2, 1, {"learning_rate": 0.2, "gamma": 0.99}),
)
POINTS = scored(candidate(1, 0, 10.0), candidate(2, 1, 25.0))


def test_only_what_differs_is_a_change():
    zero, one, _ = THREE.values()
    assert changes(zero, one) == [{"name": "learning_rate", "before": 0.1, "after": 0.2}]
    assert changes(zero, zero) == []


def test_another_algorithm_is_a_change():
    zero = agent(0)
    other = agent(1, 0)
    other.algorithm = "sac"
    assert changes(zero, other) == [{"name": "algorithm", "before": "ppo", "after": "sac"}]


def test_the_path_leads_from_the_first_ancestor_to_the_agent():
    found = walk(THREE, POINTS, "t-abcdef-a2")
    assert [step["number"] for step in found["path"]] == [0, 1, 2]
    assert found["children"] == []


def test_a_step_has_its_gain_and_its_cost():
    _, step = walk(THREE, POINTS, "t-abcdef-a1")["path"]
    assert (step["score"], step["gain"], step["core_seconds"], step["submissions"]) == (25.0, 15.0, 2.0, 1)


def test_an_agent_without_a_score_has_no_gain():
    *_, step = walk(THREE, POINTS, "t-abcdef-a2")["path"]
    assert (step["score"], step["gain"]) == (None, None)


def test_children_are_listed_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(lineage, "MOST_CHILDREN", 2)
    found = walk(family(agent(0), *(agent(number, 0) for number in range(1, 6))), POINTS, "t-abcdef-a0")
    assert [one["number"] for one in found["children"]] == [1, 2]
    assert found["left_out"] == 3


def test_records_that_form_a_circle_end_the_walk():
    found = walk(family(agent(0, 1), agent(1, 0)), POINTS, "t-abcdef-a0")
    assert [step["number"] for step in found["path"]] == [1, 0]


def test_a_parent_of_another_tournament_is_named():
    (step,) = walk(family(agent(3, 2)), POINTS, "t-abcdef-a3")["path"]
    assert step["starts_elsewhere"]
