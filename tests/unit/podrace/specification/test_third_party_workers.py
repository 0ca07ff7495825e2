"""Tests specifications that name a worker of a third party, and what the pod makes of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentpod.config import PodConfig
from agentpod.learner.ending import ending_of_error
from agentpod.session.role_client import RoleClient
from agentpod.session.spaces import check_same_spaces, check_unchanged_spaces
from orchestrator.launchers.pod_settings import check_own_worker, roles_of
from podrace.errors import InvalidArgument
from podrace.limits.user_code import names_user_code
from podrace.orchestrator.v1.orchestrator_pb2 import OUTCOME_AGENT_FAILED, OUTCOME_SPEC_FAILED
from podrace.specification import resolve as spec
from podrace.tournament.v1.tournament_pb2 import LAYOUT_SEPARATE, PodSpec, TournamentSpec
from simulators.base import Space
from simulators.messages import space_message

ADDRESS = "grpc://127.0.0.1:50090"


def resolve(pool: dict[str, Any] | None = None, **pod: object) -> TournamentSpec:
    values = {
        "environment": {"id": "cartpole"},
        "algorithms": {"ppo": {}},
        "objective": {"target_return": 475},
        "pod": {"worker": ADDRESS, **pod},
        "pool": pool or {},
    }
    return spec.resolve(spec.parse(values, source="test.toml"))


def test_a_worker_implies_one_pod_of_separate_processes_on_the_plane_grpc() -> None:
    resolved = resolve()
    assert (resolved.pool.maximum_pods, resolved.pod.plane, resolved.pod.layout) == (1, "grpc", LAYOUT_SEPARATE)
    assert spec.resolve(resolved) == resolved


@pytest.mark.parametrize(
    ("pool", "pod", "said"),
    [
        (
            {},
            {"worker": "mine.Worker"},
            r"pod\.worker = 'mine.Worker': expected grpc://host:port, .*python:",
        ),
        ({}, {"workers": 2}, r"pod\.workers = 2: pod\.worker is one worker"),
        ({}, {"learners": 2}, r"pod\.learners = 2: pod\.worker is one worker"),
        ({"maximum_pods": 2}, {}, r"pool\.maximum_pods = 2: pod\.worker serves one pod at a time"),
        ({}, {"plane": "shared"}, r"pod\.worker: needs pod\.layout = 'separate' and pod\.plane = 'grpc'"),
        ({}, {"layout": "fused"}, r"pod\.worker: needs pod\.layout = 'separate' and pod\.plane = 'grpc'"),
    ],
)
def test_what_does_not_go_with_it_is_reported_in_one_line(
    pool: dict[str, Any], pod: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        resolve(pool, **pod)


def test_the_pod_has_no_process_for_it_and_calls_its_address() -> None:
    pod = PodSpec(layout=LAYOUT_SEPARATE, workers=1, learners=1, worker=ADDRESS)
    assert roles_of(pod) == ("learner", "evaluator")
    services: dict[str, Any] = {"orchestrator": "o", "leaderboard": "l", "store": "s", "folder": Path("f")}
    config = PodConfig(**services, pod_id="p", layout="separate", worker_address="127.0.0.1:50090")
    assert config.roles == roles_of(pod)
    assert config.address("worker-0") == "127.0.0.1:50090"
    assert config.address("evaluator").startswith("unix:")


def test_a_class_of_a_user_runs_in_the_workers_of_any_pod_apart_from_the_leader() -> None:
    resolved = resolve({"maximum_pods": 3}, worker="python:mine:Worker", workers=2, layout="separate")
    assert (resolved.pool.maximum_pods, resolved.pod.workers, resolved.pod.plane) == (3, 2, "auto")
    assert names_user_code(resolved)
    assert roles_of(resolved.pod) == ("learner", "worker-0", "worker-1", "evaluator")
    check_own_worker(resolved.pod, "docker")


async def test_a_worker_that_does_not_answer_is_reported_in_one_line_and_no_lost_process(tmp_path: Path) -> None:
    services: dict[str, Any] = {"orchestrator": "o", "leaderboard": "l", "store": "s", "folder": tmp_path}
    absent = f"unix:{tmp_path}/absent"
    config = PodConfig(**services, pod_id="p", layout="separate", worker_address=absent, role_wait_seconds=0.05)
    client = RoleClient(config)
    with pytest.raises(
        InvalidArgument, match=r"^pod\.worker = 'grpc://unix:.*absent': nothing answers there"
    ) as caught:
        await client.ready()
    await client.close()
    assert ending_of_error(caught.value, opened=False).outcome == OUTCOME_SPEC_FAILED
    assert ending_of_error(caught.value, opened=True).outcome == OUTCOME_AGENT_FAILED


@pytest.mark.parametrize("launcher", ["docker", "kubernetes"])
def test_launchers_whose_pods_it_does_not_reach_refuse_it(launcher: str) -> None:
    check_own_worker(PodSpec(), launcher)
    with pytest.raises(InvalidArgument, match=rf"pod\.worker = '{ADDRESS}': .*launcher '{launcher}'.*'process'"):
        check_own_worker(PodSpec(worker=ADDRESS), launcher)


def opened(size: int, bound: float) -> Any:
    observed = Space("continuous", (size,), torch.float32, low=(-bound,) * size, high=(bound,) * size)
    return SimpleNamespace(
        observation_space=space_message(observed), action_space=space_message(Space("discrete", (), torch.int64, n=2))
    )


def test_spaces_are_equal_as_float32_and_others_are_reported_in_one_line() -> None:
    check_same_spaces([opened(4, 0.1), opened(4, float(torch.tensor(0.1)))], "cartpole", "127.0.0.1:50090")
    said = rf"^pod\.worker = '{ADDRESS}': its spaces are .*shape: 3.*those of environment 'cartpole' are .*shape: 4"
    with pytest.raises(InvalidArgument, match=said) as caught:
        check_same_spaces([opened(3, 0.1), opened(4, 0.1)], "cartpole", "127.0.0.1:50090")
    assert "\n" not in caught.value.message
    with pytest.raises(InvalidArgument, match="the options of the evaluation change its spaces"):
        check_same_spaces([opened(3, 0.1), opened(4, 0.1)], "cartpole")


def test_spaces_that_change_between_two_openings_are_reported_in_one_line() -> None:
    actions = Space("discrete", (), torch.int64, n=2)
    before = Space("continuous", (4,), torch.float32), actions
    check_unchanged_spaces(None, before, "mine")
    check_unchanged_spaces(before, before, "mine")
    with pytest.raises(
        InvalidArgument, match=r"^environment 'mine': its observation space has changed since"
    ) as caught:
        check_unchanged_spaces(before, (Space("continuous", (5,), torch.float32), actions), "mine")
    assert "\n" not in caught.value.message
    with pytest.raises(InvalidArgument, match=r"^environment 'mine': its action space has changed since"):
        check_unchanged_spaces(before, (before[0], Space("discrete", (), torch.int64, n=3)), "mine")
