from pathlib import Path
from random import Random

import pytest

from podrace.cli.results.importance_plot import draw_importance
from podrace.client.importance import AlgorithmImportance, importance_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.specification import resolve

SPEC = resolve.resolve(
    resolve.parse(
        {
            "environment": {"id": "pendulum"},
            "algorithms": {"ppo": {}, "sac": {}},
            "objective": {"environment_steps": 1000},
        },
        source="test",
    )
)


def found(count: int) -> list[AlgorithmImportance]:
    random, agents, submissions = Random(1), [], []
    for number in range(count):
        agent = Agent(agent_id=f"t-a{number}", number=number, algorithm=("ppo", "sac")[number % 2])
        rate = 10 ** random.uniform(-4, -2)
        agent.hyperparameters.update({"learning_rate": rate, "activation": random.choice(["relu", "tanh"])})
        agents.append(agent)
        score = -abs(rate - 1e-3) * 1e3
        submissions.append(
            Candidate(
                agent_id=agent.agent_id, agent_number=number, trial=number, algorithm=agent.algorithm, score=score
            )
        )
    return importance_of(SPEC, agents, submissions)


@pytest.mark.long
def test_there_is_a_panel_for_each_hyperparameter_that_differs(tmp_path: Path) -> None:
    path = tmp_path / "importance.png"
    assert draw_importance(path, SPEC, found(60), title="a\x1b[2Jb")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_without_hyperparameters_that_differ_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "importance.png"
    assert not draw_importance(path, SPEC, [], title="")
    assert not draw_importance(path, SPEC, found(1), title="")
    assert not path.exists()
