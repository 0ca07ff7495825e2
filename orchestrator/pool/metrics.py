"""Exports the metrics of the reconcile loop: tournaments, pods, leases."""

from collections import Counter
from collections.abc import Mapping, Sequence

import prometheus_client

from orchestrator.decisions.fair_share import Demand
from orchestrator.decisions.pool_size import Action, PodView, RetirePod, StartPod
from orchestrator.state.observation import Observation
from orchestrator.state.records import RUNNING
from orchestrator.state.runtime import RuntimeState
from podrace.tournament.v1.tournament_pb2 import TournamentState

PODS = prometheus_client.Gauge("podrace_orchestrator_pods", "Pods", ["tournament_id"])
WANTED = prometheus_client.Gauge(
    "podrace_orchestrator_pods_wanted", "Pods after all decided actions are done", ["tournament_id"]
)
LEASES = prometheus_client.Gauge("podrace_orchestrator_leases", "Assignments held by pods")
EXPIRED = prometheus_client.Counter("podrace_orchestrator_leases_expired", "Leases that were not renewed in time")
TOURNAMENTS = prometheus_client.Gauge("podrace_orchestrator_tournaments", "Tournaments", ["state"])
BEST = prometheus_client.Gauge("podrace_orchestrator_best_score", "Score of the best candidate", ["tournament_id"])
STEPS = prometheus_client.Gauge(
    "podrace_orchestrator_environment_steps", "Environment steps over all agents", ["tournament_id"]
)
FAILED_AGENTS = prometheus_client.Gauge("podrace_orchestrator_failed_agents", "Agents that failed", ["tournament_id"])
PAUSED = prometheus_client.Gauge("podrace_orchestrator_tournaments_paused", "Tournaments that wait for storage")
PAUSED_BY_USERS = prometheus_client.Gauge(
    "podrace_orchestrator_tournaments_paused_by_users", "Running tournaments that users have paused"
)
UNWRITABLE = prometheus_client.Gauge(
    "podrace_orchestrator_database_unwritable",
    "1 while the database cannot be written, usually because its disk is full",
)
RECONCILE = prometheus_client.Histogram("podrace_orchestrator_reconcile_seconds", "Duration of a reconcile cycle")


def wanted(demands: Sequence[Demand], views: Sequence[PodView], actions: Sequence[Action]) -> Mapping[str, int]:
    """Number of pods per tournament after these actions; at least its minimum, even if there is no capacity for it."""
    counts = Counter([view.tournament_id for view in views if view.drained_since is None])
    counts.update([action.tournament_id for action in actions if isinstance(action, StartPod)])
    if retired := {action.pod_id for action in actions if isinstance(action, RetirePod)}:
        counts.subtract([view.tournament_id for view in views if view.pod_id in retired])
    minimum = {demand.tournament_id: demand.minimum_pods for demand in demands}
    return {name: max(counts[name], minimum.get(name, 0)) for name in {*counts, *minimum}}


def measure_wanted(counts: Mapping[str, int]) -> None:
    """Exports the number of pods that was decided on."""
    _set_by_tournament(WANTED, counts)


def measure(observed: Observation, runtime: RuntimeState, *, writable: bool = True) -> None:
    """Exports what a reconcile cycle observed; per tournament only for those that are active."""
    UNWRITABLE.set(not writable)
    names = [tournament.tournament_id for tournament in observed.tournaments]
    pods = Counter([pod.tournament_id for pod in observed.pods])
    # A tournament without any pod has the value 0: an alert compares the pods of each tournament with the wanted ones.
    _set_by_tournament(PODS, {name: pods[name] for name in {*names, *pods}})
    _set_by_tournament(STEPS, {name: runtime.counters.environment_steps(name) for name in names})
    _set_by_tournament(FAILED_AGENTS, {name: runtime.counters.failed_agents(name) for name in names})
    _set_by_tournament(
        BEST, {name: runtime.best.by_tournament[name].score for name in names if name in runtime.best.by_tournament}
    )
    LEASES.set(len(runtime.leases.held))
    PAUSED.set(len(runtime.paused))
    PAUSED_BY_USERS.set(
        sum(one.state == RUNNING and one.tournament_id in runtime.cache.pauses for one in observed.tournaments)
    )
    for word, state in TournamentState.items():
        if state:
            label = word.removeprefix("TOURNAMENT_STATE_").lower()
            TOURNAMENTS.labels(label).set(observed.states.get(state, 0))


def _set_by_tournament(gauge: prometheus_client.Gauge, values: Mapping[str, float]) -> None:
    """Sets a gauge per tournament and removes other tournaments; a concurrent scrape sees all current tournaments."""
    for tournament_id, value in values.items():
        gauge.labels(tournament_id).set(value)
    reported = {sample.labels["tournament_id"] for metric in gauge.collect() for sample in metric.samples}
    for tournament_id in reported - values.keys():
        gauge.remove(tournament_id)
