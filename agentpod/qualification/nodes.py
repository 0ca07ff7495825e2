"""Examines two nodes together, over InfiniBand or sockets: a group of one process on each, and a pod of both.

Run the same command on both, with the address of the first. Both must have the same number of GPUs, and the next port
must be free as well, for the leader of the pod:

    podrace qualify --part nodes --node 0 --meet 10.0.0.1:29600
    podrace qualify --part nodes --node 1 --meet 10.0.0.1:29600
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from agentpod.qualification import collectives
from agentpod.qualification.bench import Bench
from agentpod.qualification.members import group_trial, judge, node_trial, own_address
from agentpod.qualification.trial_pod import TrialHost, trial_pod
from podrace.errors import InvalidArgument
from podrace.qualification.findings import Finding, Grade

PART = "nodes"
NODES = 2
ELEMENTS, STAND_IN_ELEMENTS = 1 << 26, 1 << 16
FOLLOW_SECONDS = 200.0
"""Time that the second node takes part in the pod, which the first one ends earlier."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades the group and the pod; without a second node, two processes take the place of the group.

    Raises:
        InvalidArgument: The address or the number of the node is malformed.
    """
    if bench.meet:
        check_address(bench.meet, bench.node)
        elements = ELEMENTS if bench.gpus else STAND_IN_ELEMENTS
        yield from judge(node_trial(PART, bench.meet, bench.node, NODES, bench.devices[0], elements))
        yield (lead if bench.node == 0 else follow)(bench)
    elif bench.gpus:
        remedy = "needs two nodes: run this part on both, with --node 0 and 1 and --meet HOST:PORT of the first"
        yield Finding(PART, "two nodes", Grade.ABSENT, remedy=remedy)
    else:
        yield from judge(group_trial(PART, ("cpu",) * NODES, STAND_IN_ELEMENTS))


def check_address(meet: str, node: int) -> None:
    """Rejects an address without a port, and a third node.

    Raises:
        InvalidArgument: It is malformed.
    """
    host, _, port = meet.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgument(f"meet = {meet!r}: expected host:port of node 0, for instance 10.0.0.1:29600")
    if node >= NODES:
        raise InvalidArgument(f"node = {node}: there are {NODES} nodes, numbered from 0")


def host_of(bench: Bench) -> TrialHost:
    """Returns this node's part of the pod; the leader serves the other node at the port after that of `meet`."""
    host, _, port = bench.meet.rpartition(":")
    return TrialHost(NODES, bench.node, own_address(host, int(port)), f"{host}:{int(port) + 1}")


def lead(bench: Bench) -> Finding:
    """Runs the first node's part of a pod with a learner on each GPU of both, and grades it by one learner."""
    # First, because the second node waits for this pod.
    together = asyncio.run(collectives.measure(bench, NODES * len(bench.devices), host=host_of(bench)))
    alone = asyncio.run(collectives.measure(bench, 1))
    message = together.message if not together.together else alone.message
    return collectives.judge_scaling(replace(together, part=PART, alone=alone.together, message=message))


def follow(bench: Bench) -> Finding:
    """Runs the second node's part of that pod until its leader ends it."""
    return asyncio.run(_follow(bench))


async def _follow(bench: Bench) -> Finding:
    spec = collectives.specification_of(bench, NODES * len(bench.devices), NODES)
    async with trial_pod(bench.folder / "follower", spec, host=host_of(bench)) as pod:
        await pod.until(lambda: False, FOLLOW_SECONDS)
        fused, code = len(pod.logged("fusion round committed")), pod.exit_code
        warnings = "; ".join(pod.warnings()[-1:])
    return judge_follower(fused, code, warnings)


def judge_follower(fused: int, exit_code: int | None, message: str) -> Finding:
    """Grades the second node's part of a pod: it must take part in rounds, and exit with 0 after its leader. Pure."""
    name, expected = "pod of two nodes, second node", "takes part, and exits after its leader"
    if fused and exit_code == 0:
        return Finding(PART, name, Grade.PASS, "took part, and exited after its leader", expected)
    measured = message or ("did not take part" if not fused else f"exit code {exit_code}")
    remedy = f"open the port after that of --meet between the nodes; `podrace qualify --part {PART} --debug`"
    return Finding(PART, name, Grade.FAIL, measured, expected, remedy=remedy)
