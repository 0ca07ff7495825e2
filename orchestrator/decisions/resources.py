"""Owns the arithmetic of reservations: what a pod takes, what there is, and what has a place where.

Capacity is counted in reservations, not in momentary idleness: a machine of two cores holds two pods of one core,
however busy they are.
"""

import math
from dataclasses import dataclass, replace
from itertools import islice


@dataclass(frozen=True)
class Resources:
    """What a pod reserves, or what there is."""

    cores: float
    memory_bytes: int
    gpus: int
    hosts: int = 1
    """Of a pod: nodes that it is spread over in equal parts."""

    @property
    def per_host(self) -> "Resources":
        """What a pod reserves on each of its nodes."""
        if self.hosts == 1:
            return self
        # Thousandths of a core are the finest that Kubernetes counts.
        return Resources(round(self.cores / self.hosts, 3), self.memory_bytes // self.hosts, self.gpus // self.hosts)

    def for_hosts(self, hosts: int) -> "Resources":
        """What so many parts of a pod reserve."""
        per_host = self.per_host
        return Resources(per_host.cores * hosts, per_host.memory_bytes * hosts, per_host.gpus * hosts, hosts)

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cores + other.cores, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.cores - other.cores, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus)


@dataclass(frozen=True)
class FreeResources:
    """What may still be reserved: altogether, and on each node. Each part of a pod has to fit on a node of its own."""

    total: Resources
    nodes: tuple[Resources, ...]
    strict: bool = False
    """Whether cores cannot be promised twice either, because somebody else places the pods."""

    def __sub__(self, pod: Resources) -> "FreeResources":
        per_host = pod.per_host
        # Where none has room, those with the most cores promise them twice.
        order = sorted(range(len(self.nodes)), key=lambda index: self._preference(index, per_host))
        chosen = set(order[: pod.hosts])
        nodes = (node - per_host if index in chosen else node for index, node in enumerate(self.nodes))
        return replace(self, total=self.total - pod, nodes=tuple(nodes))

    def _preference(self, index: int, per_host: Resources) -> tuple[bool, float]:
        """Sorts the nodes that a part goes to first."""
        fits = _covers(self.nodes[index], per_host)
        return not fits, 0.0 if fits else -self.nodes[index].cores

    def fits(self, pod: Resources, *, oversubscribe_cores: bool = False) -> bool:
        """Whether one more pod has a place here; its cores do not count where they may be promised twice."""
        needed = replace(pod, cores=-math.inf) if oversubscribe_cores and not self.strict else pod
        return _covers(self.total, needed) and self.has_nodes(needed)

    def has_nodes(self, pod: Resources) -> bool:
        """Whether there is a node for each part of a pod, whatever there is altogether."""
        per_host = pod.per_host
        fitting = (node for node in self.nodes if _covers(node, per_host))
        return len(list(islice(fitting, pod.hosts))) == pod.hosts

    @property
    def largest(self) -> Resources:
        """The most of each that one node has left, though perhaps not the same one."""
        return Resources(
            min(self.total.cores, max((node.cores for node in self.nodes), default=0.0)),
            min(self.total.memory_bytes, max((node.memory_bytes for node in self.nodes), default=0)),
            min(self.total.gpus, max((node.gpus for node in self.nodes), default=0)),
        )


@dataclass(frozen=True)
class Capacity:
    """What the machine, or a cluster of them, has for pods."""

    total: Resources
    """All of it, reserved or not."""
    available_memory_bytes: int
    """Memory that could be had this moment, whoever uses the rest."""
    nodes: tuple[Resources, ...] = ()
    """Of a cluster: the same for each node, what others reserved there taken off; empty: one machine."""
    free: FreeResources | None = None
    """Of a cluster, whose pods somebody else places: what is left, all pods that there are taken off."""
    closed: str = ""
    """Why no pod may be started now; empty: they may."""

    @property
    def unoccupied(self) -> FreeResources:
        """What there is while no pod of ours is anywhere."""
        return FreeResources(self.total, self.nodes or (self.total,), strict=bool(self.nodes))


def _covers(free: Resources, pod: Resources) -> bool:
    return pod.cores <= free.cores and pod.memory_bytes <= free.memory_bytes and pod.gpus <= free.gpus
