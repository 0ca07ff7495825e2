"""Predicts what growing is worth to a tournament, by simulated races of the leaderboard's strategy.

The curves of the simulated agents are made up (benchmarks.race_simulator), the decisions are those of the product:
`leaderboard.evolution` chooses the agents, `orchestrator.decisions.pod_sizes` the sizes of the pods. The exponent says
what a core is worth to an agent: a pod of c cores is c^exponent times as fast.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.race_simulator.contenders import known, specification_of
from benchmarks.race_simulator.families import FAMILIES
from benchmarks.race_simulator.growth import GrowthRules
from benchmarks.race_simulator.race import EPISODES, TARGETS, Race, Result

PLACES = {
    "machine": GrowthRules(0.0, gap_seconds=0.25, shared=True),
    "cluster": GrowthRules(0.0, gap_seconds=5.0, shared=False),
}
"""Where pods run: the interruption by a change, and whether a new pod shares the cores of the old one."""
CONTENDERS = ("incumbent", "incumbent-grows", "incumbent-grows-by-clock", "vanilla-all", "best-of-p")


@dataclass(frozen=True)
class Plan:
    """What to simulate."""

    pods: Sequence[int]
    families: Sequence[str]
    seeds: Sequence[int]
    exponents: Sequence[float]
    place: str = "machine"


def predict(plan: Plan) -> Iterator[str]:
    """Yields one JSON object for each number of pods, exponent and contender: means over families and seeds."""
    for pods in plan.pods:
        baseline: list[Result] = []
        for name in CONTENDERS:
            for exponent in plan.exponents if known()[name].grows else plan.exponents[:1]:
                results = _races(plan, name, pods, exponent)
                baseline = baseline or results
                yield json.dumps(_line(plan, name, pods, exponent, results, baseline))


def _races(plan: Plan, name: str, pods: int, exponent: float) -> list[Result]:
    contender, rules = known()[name], replace(PLACES[plan.place], exponent=exponent)
    spec = specification_of(contender, pods, EPISODES)
    return [
        Race(contender, spec, FAMILIES[family], pods, seed, rules=rules).run()
        for family in plan.families
        for seed in plan.seeds
    ]


def _line(
    plan: Plan, name: str, pods: int, exponent: float, results: Sequence[Result], baseline: Sequence[Result]
) -> dict[str, object]:
    gains = [one.final - other.final for one, other in zip(results, baseline, strict=True)]
    line: dict[str, object] = {
        "benchmark": "scale",
        "case": f"growth/{plan.place}/pods-{pods}",
        "contender": name,
        "final": _mean([one.final for one in results]),
        "area": _mean([one.area for one in results]),
    }
    for index, target in enumerate(TARGETS):
        line[f"clock_until_{target:g}"] = _mean([one.reached[index] for one in results])
    if known()[name].grows:
        line |= {"exponent": exponent, "changes": _mean([float(one.changes) for one in results])}
    if name != CONTENDERS[0]:
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        line |= {"final_minus_incumbent": _mean(gains), "error": float(f"{error:.2g}")}
    return line


def _mean(values: Sequence[float]) -> float:
    return float(f"{statistics.fmean(values):.4g}")
