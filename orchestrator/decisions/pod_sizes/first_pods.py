"""Decides how large the first pod of a tournament is whose incumbent's pod may grow. Pure.

The founder of a tournament has the values of the specification and a share of its time, so it is the incumbent until
another trial leads. Its pod starts with the cores of an incumbent that improves; the others start as challengers' pods.
Without this, the founder would train in a small pod until the first change, which comes after several scores.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.decisions.pod_sizes.changes import Promise, SizeLimits, wanted_cores
from orchestrator.decisions.pool_size import Action, StartPod
from orchestrator.decisions.resources import Resources
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

FOUNDER = Promise("", improving=True, scores=0, reason="the founder trains in it")
_TOLERANCE = 1e-6


def has_one_founder(spec: TournamentSpec) -> bool:
    """Whether a tournament trains one founder first: the incumbent of a strategy with a share for founders."""
    algorithms = [one for one in spec.algorithms.values() if one.ratio > 0]
    evolution = spec.evolution
    return (
        len(algorithms) == 1
        and evolution.strategy == "incumbent"
        and not evolution.generator
        and evolution.founder_share > 0
    )


def grow_first_pods(
    actions: Sequence[Action], limits: Mapping[str, SizeLimits], nodes: Sequence[Resources]
) -> list[Action]:
    """Returns the actions, in which the first pod of a tournament takes the place of several pods.

    Args:
        actions: What the pools do in this cycle.
        limits: Limits of the tournaments with one founder that have had no pod yet, by id.
        nodes: What each machine or node has room for. A pod that fits on none would wait, and the tournament with it.
    """
    starts = Counter(one.tournament_id for one in actions if isinstance(one, StartPod))
    cores = {name: _first_cores(starts[name], limit, nodes) for name, limit in limits.items()}
    replaced = {name: round(cores[name] / limit.cores) - 1 for name, limit in limits.items()}
    begun, kept = set[str](), list[Action]()
    for action in actions:
        name = action.tournament_id if isinstance(action, StartPod) else ""
        if not isinstance(action, StartPod) or replaced.get(name, 0) < 1:
            kept.append(action)
        elif name not in begun:
            begun.add(name)
            kept.append(replace(action, cores=cores[name], reason=f"{action.reason}; {FOUNDER.reason}"))
        else:
            replaced[name] -= 1
    return kept


def _first_cores(pods: int, limits: SizeLimits, nodes: Sequence[Resources]) -> float:
    """Returns the cores of the first pod of a tournament that starts this many pods."""
    sizes = limits.sizes(limits.cores, wanted_cores(FOUNDER, pods * limits.cores, limits))
    fitting = (cores for cores in sizes if any(node.covers(limits.reserved_by(cores - _TOLERANCE)) for node in nodes))
    return next(fitting, limits.cores)
