"""Pods as real processes, forked by a real fork server: they train, survive kills and release their memory."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from fork_servers import pids
from scripted import until

from agentpod.config import PodConfig
from agentpod.process.forkserver import start_ticks
from podrace.checkpoint_store import open_store
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.processes.identity import Process
from podrace.tensor_transport.codec import decode

REPOSITORY = Path(__file__).parents[3]


def lives(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not once all its threads have exited."""
    process = Process.find(pid)
    return process is not None and process.lives


def left_in_shared_memory(pod: PodConfig) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"podrace-{pod.pod_id}-*")]


@pytest.mark.parametrize("layout", ["separate", "fused"])
async def test_a_pod_trains_an_agent_and_releases_its_memory(mesh, make_spec, make_assignment, fork_server, layout):
    mesh.orchestrator.assignments.append(make_assignment(make_spec()))
    pod = mesh.pod_config(layout)
    roles = await fork_server.start(pod)
    assert set(roles) == set(pod.roles)
    await until(lambda: bool(mesh.orchestrator.completed))
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    assert mesh.leaderboard.manifests[-1].environment_steps == 4096
    await until(lambda: not any(map(lives, roles.values())))
    assert not left_in_shared_memory(pod)


async def test_an_isolated_pod_trains_as_a_fused_pod_does(mesh, make_spec, make_assignment, fork_server):
    """Its worker and its evaluator are in one process apart from the leader, and the policies are the same."""
    manifests = []
    for number, isolated in enumerate((False, True)):
        mesh.orchestrator.completed.clear()
        assignment = make_assignment(make_spec(), number=number)
        assignment.train.seed = 7
        mesh.orchestrator.assignments.append(assignment)
        pod = mesh.pod_config("fused", isolated=isolated, pod_id=f"test-{mesh.folder.name.lower()}-{number}")
        roles = await fork_server.start(pod)
        assert set(roles) == ({"learner", "worker-0"} if isolated else {"learner"})
        await until(lambda: bool(mesh.orchestrator.completed))
        completed = mesh.orchestrator.completed[0]
        assert (completed.outcome, completed.progress.policy_lag) == (pb.OUTCOME_FINISHED, 0)
        assert completed.progress.plane == ("shared" if isolated else "memory")
        manifests.append(mesh.leaderboard.manifests[-1])
        await until(lambda pids=roles: not any(map(lives, pids.values())))
        assert not left_in_shared_memory(pod)
    assert manifests[0].evaluation.policy_digest == manifests[1].evaluation.policy_digest


async def test_shared_memory_of_a_previous_run_of_a_pod_is_removed(mesh, make_spec, make_assignment, fork_server):
    mesh.orchestrator.assignments.append(make_assignment(make_spec()))
    pod = mesh.pod_config("separate")
    # A name that this run does not use itself: regions are numbered from 0.
    left = Path(f"/dev/shm/podrace-{pod.pod_id}-0.1.1_rollout_99")
    left.write_bytes(bytes(4096))
    await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.completed))
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    assert not left.exists()


async def test_two_workers_fill_one_rollout_side_by_side(mesh, make_spec, make_assignment, fork_server):
    mesh.orchestrator.assignments.append(make_assignment(make_spec()))
    roles = await fork_server.start(mesh.pod_config("separate", workers=2))
    assert "worker-1" in roles
    await until(lambda: bool(mesh.orchestrator.completed))
    last = mesh.leaderboard.manifests[-1]
    # 8 environments each, 64 steps a rollout: 4,096 steps are 4 rollouts.
    assert last.environment_steps == 4096
    assert last.rollouts == 4


@pytest.mark.parametrize("plane", ["grpc", "group"])
@pytest.mark.parametrize("algorithm", ["ppo", "sac-discrete"])
async def test_processes_without_shared_memory_train_with_copies(
    mesh, make_spec, make_assignment, fork_server, algorithm, plane
):
    settings = {"horizon": 16, "hidden_sizes": [8]}
    if algorithm == "sac-discrete":
        settings |= {"batch_size": 16, "warmup_steps": 512, "updates_per_step": 0.0625, "replay_capacity": 4096}
    else:
        settings |= {"minibatch_size": 64}
    spec = make_spec(algorithms={algorithm: {"hyperparameters": settings}})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("separate", workers=2, plane=plane)
    roles = await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.completed))
    completed = mesh.orchestrator.completed[0]
    assert (completed.outcome, completed.progress.plane) == (pb.OUTCOME_FINISHED, plane)
    assert mesh.leaderboard.manifests[-1].environment_steps >= 4096
    await until(lambda: not any(map(lives, roles.values())))
    assert not left_in_shared_memory(pod)


async def test_a_required_plane_that_is_missing_fails_the_specification(mesh, make_spec, make_assignment, fork_server):
    mesh.orchestrator.assignments.append(make_assignment(make_spec()))
    await fork_server.start(mesh.pod_config("separate", plane="cuda"))
    await until(lambda: bool(mesh.orchestrator.completed))
    completed = mesh.orchestrator.completed[0]
    assert completed.outcome == pb.OUTCOME_SPEC_FAILED
    assert "no plane connects the roles of this pod: plane 'cuda': " in completed.message


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layout", "plane", "taken", "gpus"),
    [
        ("fused", "auto", "gpu-memory", 1),
        ("separate", "auto", "cuda", 1),
        ("separate", "cuda", "cuda", 1),
        ("separate", "group", "group", 2),
    ],
)
async def test_data_of_a_simulator_on_the_gpu_stays_on_the_gpu(
    mesh, make_spec, make_assignment, fork_server, layout, plane, taken, gpus
):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    mesh.orchestrator.assignments.append(make_assignment(make_spec("cartpole", pod={"gpus": gpus})))
    pod = mesh.pod_config(layout, plane=plane, gpus=tuple(map(str, range(gpus))))
    await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.completed), seconds=120.0)
    completed = mesh.orchestrator.completed[0]
    assert (completed.outcome, completed.progress.plane) == (pb.OUTCOME_FINISHED, taken), completed.message


async def test_a_separate_pod_overlaps_with_a_policy_lag_of_one(mesh, make_spec, make_assignment, fork_server):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(steps=300_000)))
    await fork_server.start(mesh.pod_config("separate"))
    await until(lambda: any(renewal.progress.policy_lag > 0 for renewal in mesh.orchestrator.renewals))
    assert max(renewal.progress.policy_lag for renewal in mesh.orchestrator.renewals) == 1
    mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN
    await until(lambda: bool(mesh.orchestrator.completed))


@pytest.mark.parametrize("role", ["worker-0", "evaluator"])
async def test_a_killed_role_is_restarted_and_the_agent_finishes(mesh, make_spec, make_assignment, fork_server, role):
    steps = 120_000
    spec = make_spec(steps=steps, evaluation={"episodes": 8, "every_environment_steps": 4096, "share": 1.0})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("separate")
    roles = await fork_server.start(pod)
    await until(lambda: len(mesh.leaderboard.manifests) >= 2)
    os.kill(roles[role], signal.SIGKILL)
    await until(lambda: pids(pod)[role] != roles[role])
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    assert mesh.leaderboard.manifests[-1].environment_steps >= steps
    await until(lambda: not any(map(lives, pids(pod).values())))
    assert not left_in_shared_memory(pod)


OFF_POLICY = {
    "algorithms": {
        "dqn": {
            "hyperparameters": {
                "horizon": 8,
                "batch_size": 32,
                "hidden_sizes": [16],
                "warmup_steps": 256,
                "updates_per_step": 0.125,
                "replay_capacity": 8192,
            }
        }
    }
}


@pytest.mark.parametrize("layout", ["separate", "fused"])
async def test_workers_write_the_replay_memory_in_place(mesh, make_spec, make_assignment, fork_server, layout):
    workers = 2 if layout == "separate" else 1
    mesh.orchestrator.assignments.append(make_assignment(make_spec(**OFF_POLICY)))
    pod = mesh.pod_config(layout, workers=workers)
    await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.completed))
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    last = mesh.leaderboard.manifests[-1]
    assert last.environment_steps == 4096
    learner, _ = decode(open_store(mesh.leaderboard.store_uri).get_object(digest_of(last, "learner")))
    # Segments of 64 steps a worker: those after the warm-up allow 8 gradient steps each.
    assert int(learner["gradient_steps"]) == (4096 - 256 + 64 * workers) // 8
    await until(lambda: not left_in_shared_memory(pod))


async def test_a_killed_worker_does_not_empty_the_replay_memory(mesh, make_spec, make_assignment, fork_server):
    steps = 60_032
    spec = make_spec(
        steps=steps, evaluation={"episodes": 8, "every_environment_steps": 4096, "share": 1.0}, **OFF_POLICY
    )
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("separate")
    roles = await fork_server.start(pod)
    await until(lambda: len(mesh.leaderboard.manifests) >= 2)
    os.kill(roles["worker-0"], signal.SIGKILL)
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    learner, _ = decode(
        open_store(mesh.leaderboard.store_uri).get_object(digest_of(mesh.leaderboard.manifests[-1], "learner"))
    )
    # With an empty memory there would have been no updates during another warm-up.
    assert int(learner["gradient_steps"]) == (steps - 256 + 64) // 8
    await until(lambda: not left_in_shared_memory(pod))


def digest_of(manifest, part: str) -> str:
    return next(found.digest for found in manifest.parts if found.name == part)


@pytest.mark.parametrize("layout", ["separate", "fused"])
async def test_a_recurrent_policy_is_trained_and_scored(mesh, make_spec, make_assignment, fork_server, layout):
    hyperparameters = {"horizon": 32, "minibatch_size": 128, "hidden_sizes": [16], "recurrent_size": 8}
    spec = make_spec(steps=2048, algorithms={"ppo": {"hyperparameters": hyperparameters}})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    await fork_server.start(mesh.pod_config(layout))
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    assert mesh.leaderboard.manifests[-1].evaluation.episodes == 4


async def test_when_the_leader_is_killed_its_roles_exit(mesh, make_spec, make_assignment, fork_server):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(steps=10**8)))
    pod = mesh.pod_config("separate")
    roles = await fork_server.start(pod)
    await until(lambda: bool(mesh.orchestrator.renewals))
    os.kill(roles["learner"], signal.SIGKILL)
    await until(lambda: not any(map(lives, roles.values())))
    # The fork server removes the shared memory once the last role has exited.
    await until(lambda: not left_in_shared_memory(pod))


async def test_a_terminated_leader_publishes_before_it_exits(mesh, make_spec, make_assignment, fork_server):
    spec = make_spec(steps=10**8, evaluation={"episodes": 4, "every_environment_steps": 10**8})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("fused")
    roles = await fork_server.start(pod)
    await until(lambda: any(renewal.progress.policy_version > 3 for renewal in mesh.orchestrator.renewals))
    os.kill(roles["learner"], signal.SIGTERM)
    await until(lambda: bool(mesh.orchestrator.completed))
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED
    assert list(mesh.folder.glob("store/pointers/*"))
    await until(lambda: not lives(roles["learner"]))


async def test_after_a_signal_to_all_processes_of_a_pod_the_leader_exits_first(
    mesh, make_spec, make_assignment, fork_server
):
    """As Kubernetes does it: the roles are signalled too, and exit once the leader has published and exited."""
    spec = make_spec(steps=10**8, evaluation={"episodes": 4, "every_environment_steps": 10**8})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    pod = mesh.pod_config("separate")
    roles = await fork_server.start(pod)

    def version() -> int:
        return max((renewal.progress.policy_version for renewal in mesh.orchestrator.renewals), default=0)

    await until(lambda: version() > 3)
    for role in ("worker-0", "evaluator"):
        os.kill(roles[role], signal.SIGTERM)
    signalled = version()
    await until(lambda: version() > signalled + 10)
    assert pids(pod) == roles
    assert all(map(lives, roles.values()))
    os.kill(roles["learner"], signal.SIGTERM)
    await until(lambda: bool(mesh.orchestrator.completed))
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED
    assert list(mesh.folder.glob("store/pointers/*"))
    await until(lambda: not any(map(lives, roles.values())))


async def test_a_pod_that_has_exited_is_not_taken_for_running_before_the_fork_server_has_noticed(mesh, fork_server):
    """Fails on the earlier behaviour: the answer was the pid of the dead leader, and no pod ran."""
    pod = mesh.pod_config("fused")
    leader = (await fork_server.start(pod))["learner"]
    server = psutil.Process(leader).ppid()
    os.kill(server, signal.SIGSTOP)
    try:
        os.kill(leader, signal.SIGKILL)
        await until(lambda: not lives(leader))
        starting = asyncio.create_task(fork_server.start(pod))
        await asyncio.sleep(0)
    finally:
        os.kill(server, signal.SIGCONT)
    again = (await starting)["learner"]
    assert again != leader
    assert lives(again)


async def test_an_invalid_request_is_answered_with_an_error(fork_server):
    assert "unknown key" in (await fork_server.order(b'{"pod": {"pod_idd": 1}}'))["error"]
    assert "not a valid request" in (await fork_server.order(b"hello"))["error"]


async def test_the_pod_file_identifies_each_process(mesh, fork_server):
    mesh.orchestrator.assignments.clear()
    pod = mesh.pod_config("separate", tournament_id="t", cores=2.0, cpus=(0,))
    roles = await fork_server.start(pod)
    content = json.loads((pod.folder / "pod.json").read_text())
    assert content["pod_id"] == pod.pod_id
    assert content["cores"] == 2.0
    assert content["cpus"] == [0]
    for role, pid in roles.items():
        assert content["roles"][role]["start_ticks"] in (start_ticks(pid), 0) or not lives(pid)
