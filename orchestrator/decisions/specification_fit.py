"""Decides whether one pod of a specification could run on a machine or a cluster without other pods. Pure."""

from collections.abc import Iterator

from orchestrator.decisions.resources import Capacity, Resources
from podrace.errors import FieldViolation

GIBIBYTE = 1 << 30


def unfit(pod: Resources, capacity: Capacity) -> Iterator[FieldViolation]:
    """Yields the resources of which a pod needs more than any machine has.

    Args:
        pod: What one pod of the specification reserves.
        capacity: What the machine, or each node of a cluster, has.
    """
    if pod.hosts > 1 and not capacity.nodes:
        yield FieldViolation("pod.hosts", f"= {pod.hosts}: pods run on one machine here; set it to 1")
        return
    nodes, host = capacity.nodes or (capacity.total,), pod.per_host
    where = "node" if capacity.nodes else "machine"
    each = f" on each of {pod.hosts} hosts" if pod.hosts > 1 else ""
    most = Resources(
        max(node.cores for node in nodes), max(node.memory_bytes for node in nodes), max(node.gpus for node in nodes)
    )
    found = []
    if host.gpus > most.gpus:
        found.append(FieldViolation("pod.gpus", f"= {pod.gpus}: {_needs(host.gpus, each)}; {_has(where, most.gpus)}"))
    if host.memory_bytes > most.memory_bytes:
        needed, has = _gibibytes(host.memory_bytes), _gibibytes(most.memory_bytes)
        problem = f"= {pod.memory_bytes}: a pod needs {needed}{each}; {_has(where, has)}"
        found.append(FieldViolation("pod.memory_bytes", problem))
    # A single machine runs more pods than it has cores.
    if capacity.nodes and host.cores > most.cores:
        problem = f"= {pod.cores:g}: {_needs(host.cores, each)}; {_has(where, f'{most.cores:g}')}"
        found.append(FieldViolation("pod.cores", problem))
    yield from found
    if not found and capacity.nodes and not capacity.unoccupied.has_nodes(pod):
        problem = f"= {pod.hosts}: fewer nodes than this have the cores, the memory and the GPUs of one host"
        yield FieldViolation("pod.hosts", problem)


def _needs(amount: float, each: str) -> str:
    return f"a pod needs {amount:g}{each}"


def _has(where: str, amount: object) -> str:
    return f"the largest {where} has {amount}" if where == "node" else f"this machine has {amount}"


def _gibibytes(amount: int) -> str:
    return f"{amount / GIBIBYTE:.1f} GiB"
