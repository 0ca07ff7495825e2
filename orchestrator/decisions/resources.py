"""Adds up resource reservations: what pods reserve, what is free, and on which nodes a pod fits. Pure functions.

Capacity is counted in reservations, not in current load: a machine with two cores holds two pods of one core each,
however busy they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice


@dataclass(frozen=True)
class Resources:
    """What a pod reserves, or what a machine or node has."""

    cores: float
    memory_bytes: int
    gpus: int
    hosts: int = 1
    """For a pod: the number of nodes it is spread over, in equal shares."""

    @property
    def per_host(self) -> "Resources":
        """What a pod reserves on each of its hosts."""
        if self.hosts == 1:
            return self
        # Kubernetes counts cores in thousandths.
        return Resources(round(self.cores / self.hosts, 3), self.memory_bytes // self.hosts, self.gpus // self.hosts)

    def for_hosts(self, hosts: int) -> "Resources":
        """What a pod reserves on `hosts` of its hosts together."""
        per_host = self.per_host
        return Resources(per_host.cores * hosts, per_host.memory_bytes * hosts, per_host.gpus * hosts, hosts)

    def covers(self, pod: "Resources") -> bool:
        """Whether these resources hold what a pod reserves on one host."""
        return pod.cores <= self.cores and pod.memory_bytes <= self.memory_bytes and pod.gpus <= self.gpus

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cores + other.cores, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.cores - other.cores, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus)


@dataclass(frozen=True)
class FreeResources:
    """What can still be reserved, in total and per node. Each host of a pod needs a separate node."""

    total: Resources
    nodes: tuple[Resources, ...]
    strict: bool = False
    """Whether cores cannot be oversubscribed, because a scheduler outside the orchestrator places the pods."""

    def __sub__(self, pod: Resources) -> "FreeResources":
        per_host = pod.per_host
        # If the pod fits on no node, the nodes with the most free cores are oversubscribed.
        order = sorted(range(len(self.nodes)), key=lambda index: self._preference(index, per_host))
        chosen = set(order[: pod.hosts])
        nodes = (node - per_host if index in chosen else node for index, node in enumerate(self.nodes))
        return replace(self, total=self.total - pod, nodes=tuple(nodes))

    def _preference(self, index: int, per_host: Resources) -> tuple[bool, float]:
        """Sort key of a node: nodes where one host of the pod fits come first."""
        fits = self.nodes[index].covers(per_host)
        return not fits, 0.0 if fits else -self.nodes[index].cores

    def fits(self, pod: Resources, *, oversubscribe_cores: bool = False) -> bool:
        """Whether one more pod fits; its cores are ignored where they may be oversubscribed."""
        needed = replace(pod, cores=-math.inf) if oversubscribe_cores and not self.strict else pod
        return self.total.covers(needed) and self.has_nodes(needed)

    def has_nodes(self, pod: Resources) -> bool:
        """Whether there is a node for each host of a pod; does not check the total."""
        per_host = pod.per_host
        fitting = (node for node in self.nodes if node.covers(per_host))
        return len(list(islice(fitting, pod.hosts))) == pod.hosts

    @property
    def largest(self) -> Resources:
        """The largest free amount of each resource on any node; the maxima can be on different nodes."""
        return Resources(
            min(self.total.cores, max((node.cores for node in self.nodes), default=0.0)),
            min(self.total.memory_bytes, max((node.memory_bytes for node in self.nodes), default=0)),
            min(self.total.gpus, max((node.gpus for node in self.nodes), default=0)),
        )


@dataclass(frozen=True)
class Capacity:
    """What a machine or a cluster has for agent pods."""

    total: Resources
    """Reserved or not."""
    available_memory_bytes: int
    """Memory that is available now, taking into account all other programs."""
    nodes: tuple[Resources, ...] = ()
    """For a cluster: what each node has for agent pods, without what others reserved; empty for a single machine."""
    free: FreeResources | None = None
    """For a cluster: what is left after all pods; None for a single machine, where it is computed from the pods."""
    places: Mapping[str, int] = field(default_factory=dict)
    """For a cluster: index in `free.nodes` of the node that runs a pod, by pod id, for pods of one host on a node that
    accepts further pods."""
    closed: str = ""
    """Why no pod may be started now; empty if pods may be started."""

    @property
    def unoccupied(self) -> FreeResources:
        """What could be reserved if there were no agent pods."""
        return FreeResources(self.total, self.nodes or (self.total,), strict=bool(self.nodes))
