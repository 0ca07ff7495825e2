import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agentpod.config import PodConfig
from agentpod.qualification import nodes
from agentpod.qualification.bench import Bench
from agentpod.qualification.collectives import Scaling, judge_killed, judge_scaling, sizes
from agentpod.qualification.members import (
    COLLECTIVE_SECONDS,
    LOST_SECONDS,
    GroupTrial,
    group_trial,
    judge,
    paths_of,
)
from agentpod.qualification.nodes import check_address, judge_follower
from agentpod.qualification.trial_pod import TrialHost
from podrace.errors import InvalidArgument
from podrace.qualification.findings import Grade
from podrace.tensor_transport.stream_collectives import WATCH_SECONDS

GOOD = GroupTrial("collectives", 8, 3.0, 0.02, 4 << 26, right=True, lost_seconds=1.0, paths=("P2P/CUMEM",))
LOG = """
h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
h:1:2 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct
h:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
h:1:2 [0] NCCL INFO Channel 01/0 : 7[7] -> 8[0] [receive] via NET/Socket/1
h:1:2 [0] NCCL INFO Connected all rings
"""


def test_a_fast_group_that_notices_a_loss_passes() -> None:
    findings = list(judge(GOOD))
    assert {finding.grade for finding in findings} == {Grade.PASS}
    assert {finding.part for finding in judge(replace(GOOD, part="nodes"))} == {"nodes"}


@pytest.mark.parametrize(
    ("changes", "name", "grade"),
    [
        ({"join_seconds": 40.0}, "8 members, join", Grade.SLOW),
        ({"mean_seconds": 1.0}, "8 members, mean", Grade.SLOW),
        ({"right": False}, "8 members, mean", Grade.FAIL),
        ({"lost_seconds": None}, "8 members, member killed", Grade.FAIL),
        ({"lost_seconds": LOST_SECONDS + 1}, "8 members, member killed", Grade.FAIL),
        ({"message": "MemberLost: not all joined"}, "8 members, join", Grade.FAIL),
        ({"paths": ("P2P/CUMEM", "SHM/direct/direct")}, "8 members, paths", Grade.SLOW),
        ({"paths": ("NET/Socket",)}, "8 members, paths", Grade.SLOW),
        ({"paths": ()}, "8 members, paths", Grade.ABSENT),
    ],
)
def test_each_defect_is_the_only_line_that_does_not_pass(changes: dict[str, object], name: str, grade: Grade) -> None:
    (found,) = (one for one in judge(replace(GOOD, **changes)) if one.grade != Grade.PASS)  # type: ignore[arg-type]
    assert (found.name, found.grade) == (name, grade)
    assert found.remedy


def test_a_loss_that_only_the_timeout_shows_is_noticed_in_time() -> None:
    assert COLLECTIVE_SECONDS + 2 * WATCH_SECONDS < LOST_SECONDS


def test_the_paths_of_a_group_are_read_from_the_log_of_nccl() -> None:
    assert paths_of(LOG) == {"P2P/CUMEM/read", "SHM/direct/direct", "NET/IB/GDRDMA", "NET/Socket"}
    assert paths_of("") == set()


def test_a_pod_must_train_with_a_new_follower_after_one_was_killed() -> None:
    found = Scaling(8, 1.0, 8.0, killed=True)
    assert judge_killed(found).grade == Grade.FAIL
    assert judge_killed(replace(found, continued_seconds=4.0)).grade == Grade.PASS


def test_the_second_node_must_take_part_and_exit_after_its_leader() -> None:
    assert judge_follower(2, 0, "").grade == Grade.PASS
    for fused, code in ((0, 0), (2, 1), (2, None)):
        assert judge_follower(fused, code, "").grade == Grade.FAIL


@pytest.mark.parametrize(("members", "learners"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (8, [2, 4, 8]), (16, [2, 4, 8])])
def test_powers_of_two_and_all_gpus_are_tried(members: int, learners: list[int]) -> None:
    assert sizes(members) == learners


def test_efficiency_is_the_share_of_one_learner_that_each_of_several_reaches() -> None:
    found = judge_scaling(Scaling(4, 100_000.0, 320_000.0))
    assert found.grade == Grade.PASS
    assert "efficiency 80%" in found.measured
    assert judge_scaling(Scaling(4, 100_000.0, 200_000.0)).grade == Grade.SLOW
    assert judge_scaling(Scaling(4, 100_000.0, 0.0, "no NCCL")).grade == Grade.FAIL


@pytest.mark.long
def test_two_processes_average_and_the_first_notices_that_the_second_was_killed() -> None:
    found = group_trial("nodes", ("cpu", "cpu"), 4096)
    assert (found.message, found.right, found.members) == ("", True, 2)
    assert min(found.join_seconds, found.mean_seconds) > 0
    assert found.lost_seconds is not None


@pytest.mark.parametrize(("meet", "node"), [("10.0.0.1", 0), (":29600", 0), ("host:", 1), ("10.0.0.1:29600", 2)])
def test_a_malformed_address_and_a_third_node_are_refused(meet: str, node: int) -> None:
    with pytest.raises(InvalidArgument, match=r"meet = |node = 2"):
        check_address(meet, node)


@pytest.mark.long
def test_two_nodes_form_a_group_and_train_as_one_pod(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        meet = f"127.0.0.1:{free.getsockname()[1]}"
    benches = [Bench(tmp_path / str(node), node=node, meet=meet) for node in range(2)]
    for bench in benches:
        bench.folder.mkdir(mode=0o700)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda bench: list(nodes.run(bench)), benches)
    for findings in (first, second):
        assert [(found.name, found.measured) for found in findings if found.grade == Grade.FAIL] == []
    assert (first[-1].name, second[-1].name) == ("fusion of 2 learners", "pod of two nodes, second node")


def test_each_node_runs_its_part_of_one_pod_with_its_own_gpus(tmp_path: Path) -> None:
    base = PodConfig(
        "p", "unix:o", "unix:l", "folder:///s", tmp_path, learners=4, gpus=("0", "1", "2", "3"), pod_gpus=4
    )
    hosts = [TrialHost(2, index, f"10.0.0.{index + 1}", "10.0.0.1:29601").of(base) for index in range(2)]
    assert {host.pod_id for host in hosts} == {"qualify"}
    assert hosts[0].key == hosts[1].key != ""
    assert [host.leader_address for host in hosts] == [f"unix:{tmp_path}/learner.sock", "10.0.0.1:29601"]
    for host in hosts:
        assert (host.roles, host.gpus, host.gpus_of_pod) == (("learner", "learner-1"), ("0", "1"), 2)
