"""Examines a group of one process on each of two nodes, over InfiniBand or sockets.

Run the same command on both, with the address of the first:

    podrace qualify --part nodes --node 0 --meet 10.0.0.1:29600
    podrace qualify --part nodes --node 1 --meet 10.0.0.1:29600
"""

from collections.abc import Iterator

from agentpod.qualification.bench import Bench
from agentpod.qualification.members import group_trial, judge, node_trial
from podrace.errors import InvalidArgument
from podrace.qualification.findings import Finding, Grade

PART = "nodes"
NODES = 2
ELEMENTS, STAND_IN_ELEMENTS = 1 << 26, 1 << 16


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades the group; without a second node, two processes on processors take its place.

    Raises:
        InvalidArgument: The address or the number of the node is malformed.
    """
    if bench.meet:
        check_address(bench.meet, bench.node)
        elements = ELEMENTS if bench.gpus else STAND_IN_ELEMENTS
        yield from judge(node_trial(PART, bench.meet, bench.node, NODES, bench.devices[0], elements))
    elif bench.gpus:
        mend = "needs two nodes: run this part on both, with --node 0 and 1 and --meet HOST:PORT of the first"
        yield Finding(PART, "two nodes", Grade.ABSENT, mend=mend)
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
