"""Resolves tournament specifications: reads TOML values, fills in defaults, and checks every value.

    spec = resolve(parse(read_toml(path), source=str(path)))

In a resolved specification every optional field is set, and every hyperparameter of every algorithm has its value and,
if it is searched, its range and scale. The orchestrator resolves each specification it receives, so clients in other
languages may send incomplete ones.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from podrace.config import unknown
from podrace.errors import InvalidArgument
from podrace.field_bounds import limits
from podrace.specification import (
    ancestor,
    budget,
    catalog,
    data_leakage,
    declared_algorithms,
    environment_search,
    evolution_settings,
    objectives,
    plugin_settings,
    presets,
    snapshot_schedule,
)
from podrace.specification.hyperparameters import resolve_algorithms, starts_problem
from podrace.specification.messages import Problems, bad_spec, check_values, fill
from podrace.specification.pods import exchange, sizes
from podrace.tournament.v1 import tournament_pb2 as pb

REPLAY_BYTES = 1 << 30
"""Default of `assignment.replay_bytes`."""
TOURNAMENT_REPLAY_BYTES = 16 << 30
"""Default of `assignment.tournament_replay_bytes`."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "pool": {"minimum_pods": 1, "priority": 0},
    "pod": {
        "workers": 1,
        "cores": 1.0,
        "memory_bytes": 1 << 30,
        "gpus": 0,
        "learners": 1,
        "precision": "float32",
        "plane": "auto",
        "hosts": 1,
        "captured": True,
    },
    "assignment": {
        "environment_steps": 200_000,
        "replay_bytes": REPLAY_BYTES,
        "tournament_replay_bytes": TOURNAMENT_REPLAY_BYTES,
        "tournament_checkpoint_bytes": 0,
    },
    "evaluation": {
        "episodes": 64,
        "share": 0.1,
        "greedy": True,
        "objective": "return",
        "fold_deviations": 0.0,
        "verify": 0,
    },
    "evolution": evolution_settings.DEFAULTS,
    "fusion": {"mode": "average", "every_updates": 8, "outer_learning_rate": 0.7, "outer_momentum": 0.9},
    "champion": {"reevaluate_top": 4, "reevaluate_episodes": 64, "ensemble": 0},
}
"""Defaults of optional fields by section, as documented in the protos."""

LIMITS: Mapping[str, tuple[float, float]] = {
    f"{section.name}.{name}": pair
    for section in pb.TournamentSpec.DESCRIPTOR.fields
    if section.message_type is not None and not section.is_repeated
    for name, pair in limits(section.message_type).items()
}
"""Smallest and largest allowed value of numeric fields, inclusive, as the contract states them."""

RESERVED_NAMES = ("podrace-archive-", "podrace-backup-")
"""Begin ids in a checkpoint store (podrace.checkpoint_store.store) that are no tournaments."""
REPORT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Name of a report. The command names files after it."""
MOST_SHOWN = 63

CHOICES: Mapping[str, Collection[str]] = {
    "pod.precision": catalog.PRECISIONS,
    "pod.plane": catalog.PLANES,
    "evolution.strategy": catalog.STRATEGIES,
    "evolution.allocation": evolution_settings.ALLOCATIONS,
    "fusion.mode": catalog.FUSION_MODES,
    "search": presets.SEARCHES,
}
"""Allowed values of the string fields that have a default and a fixed set of values."""


def parse(values: Mapping[str, Any], *, source: str) -> pb.TournamentSpec:
    """Reads nested TOML values as a TournamentSpec.

    Raises:
        InvalidArgument: A key is unknown or a value is invalid; the message names the source and the dotted key.
    """
    spec = pb.TournamentSpec()
    fill(spec, values, where=f"{source}: ", path="")
    try:
        check_values(spec)
    except InvalidArgument as error:
        raise bad_spec(f"{source}: {error.message}", error.violations) from None
    return spec


def resolve(given: pb.TournamentSpec) -> pb.TournamentSpec:
    """Returns a copy with every default filled in and every value checked; resolving twice changes nothing.

    Raises:
        InvalidArgument: Values are wrong; the message names each key, its value and what is expected. Values that are
            out of bounds are reported before anything is derived from them.
    """
    spec, problems = pb.TournamentSpec(), Problems()
    spec.CopyFrom(given)
    check_values(spec)
    with problems.collect():
        _resolve_environment(spec)
    problems.add(*declared_algorithms.declaration_problems(spec))
    problems.refuse()
    _fill_defaults(spec)
    problems.add(*_choice_problems(spec))
    problems.add(*_layout_problems(spec.pod), plugin_settings.worker_problem(spec))
    problems.add(*_limit_problems(spec))
    problems.add(*_report_problems(spec))
    problems.add(*_problems_together(spec))
    if spec.search not in presets.SEARCHES:
        problems.refuse()
    with problems.collect():
        environment_search.spread(spec)
        presets.apply(spec)
        resolve_algorithms(spec)
    problems.refuse()
    return spec


def _fill_defaults(spec: pb.TournamentSpec) -> None:
    budget.fill(spec)
    presets.fill_evolution(spec)
    evolution_settings.fill(spec.evolution)
    plugin_settings.fill_evolution(spec.evolution)
    plugin_settings.fill_evaluation(spec.evaluation)
    snapshot_schedule.fill_assignment(spec.assignment)
    if spec.pod.HasField("worker"):
        plugin_settings.fill_worker(spec)
    mode_given = spec.fusion.HasField("mode")
    for section, defaults in DEFAULTS.items():
        message = getattr(spec, section)
        message.SetInParent()
        for name, default in defaults.items():
            if not message.HasField(name):
                setattr(message, name, default)
    # Assigning a default to itself makes its presence explicit.
    spec.seed = spec.seed
    spec.synchronous = spec.synchronous
    spec.search = spec.search or presets.DECLARED
    if spec.pod.layout == pb.LAYOUT_UNSPECIFIED:
        spec.pod.layout = _default_layout(spec.pod, steps_on_gpu=catalog.steps_on_gpu(spec.environment.id))
    sizes.fill_sizes(spec, mode_given=mode_given)
    exchange.fill_experience(spec)
    exchange.fill_opponents(spec)
    if not spec.evaluation.HasField("every_environment_steps"):
        spec.evaluation.every_environment_steps = max(1, spec.assignment.environment_steps // 4)
    if not spec.evaluation.HasField("racing"):
        spec.evaluation.racing = not (spec.synchronous or spec.evaluation.HasField("evaluator"))
    for report in spec.reports.values():
        if not report.HasField("episodes"):
            report.episodes = spec.evaluation.episodes


def _report_problems(spec: pb.TournamentSpec) -> Iterator[str]:
    for name in sorted(spec.reports):
        if not REPORT_NAME.fullmatch(name):
            yield (
                f"reports.{name[:MOST_SHOWN]!r}: expected letters, digits, '-', '_' and '.', starting with a letter or"
                " digit; files are named after it"
            )


def _resolve_environment(spec: pb.TournamentSpec) -> None:
    if not spec.environment.id:
        raise bad_spec("environment.id: missing; name an environment, for instance 'CartPole-v1'")
    if not spec.environment.HasField("count"):
        spec.environment.count = 16
    if not spec.name:
        spec.name = re.sub(r"[^a-z0-9]+", "-", spec.environment.id.lower()).strip("-")[:40]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", spec.name):
        raise bad_spec(f"name = {spec.name!r}: expected letters, digits, '-' and '_', starting with a letter or digit")
    if spec.name.startswith(RESERVED_NAMES):
        raise bad_spec(f"name = {spec.name!r}: {' and '.join(RESERVED_NAMES)} begin ids of other things in a store")


def _default_layout(pod: pb.PodSpec, *, steps_on_gpu: bool) -> "pb.Layout.ValueType":
    if pod.gpus and steps_on_gpu:
        # Processes on one GPU take turns anyway, and within one process rollouts stay where they are.
        one_each = pod.gpus == pod.learners and pod.workers == 1 and pod.plane == "auto"
        return pb.LAYOUT_FUSED if one_each else pb.LAYOUT_SEPARATE
    return pb.LAYOUT_SEPARATE if pod.cores >= 2 else pb.LAYOUT_FUSED


def _layout_problems(pod: pb.PodSpec) -> Iterator[str]:
    fused = pod.layout == pb.LAYOUT_FUSED
    if fused and pod.workers > 1:
        yield (
            f"pod.workers = {pod.workers}: each learner of a fused pod has one worker, in its own process; set it to 1,"
            " or layout = 'separate'"
        )
    if pod.plane == "cuda" and not pod.gpus:
        yield "pod.plane = 'cuda': set pod.gpus to 1 or more, or pod.plane to 'auto'"
    if fused and pod.plane != "auto":
        yield (
            f"pod.plane = {pod.plane!r}: a learner of a fused pod and its worker are one process; use layout ="
            " 'separate', or plane = 'auto'"
        )
    for name in ("learners", "gpus"):
        number = getattr(pod, name)
        if number % pod.hosts:
            yield f"pod.{name} = {number}: is not divisible by pod.hosts = {pod.hosts}"
    if fused and pod.gpus > pod.learners:
        yield (
            f"pod.gpus = {pod.gpus}: a fused pod computes on one GPU for each learner; set pod.learners = {pod.gpus},"
            f" pod.gpus = {pod.learners}, or layout = 'separate'"
        )
    if 0 < pod.gpus < pod.learners:
        yield (
            f"pod.gpus = {pod.gpus}: NCCL connects GPUs, so each of the {pod.learners} learners needs its own; set it"
            f" to {pod.learners} or more, or to 0"
        )


def _choice_problems(spec: pb.TournamentSpec) -> Iterator[str]:
    for key, choices in CHOICES.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(spec, section) if section else spec, name)
        if value not in choices:
            yield unknown(key, name, value, choices)


def _limit_problems(spec: pb.TournamentSpec) -> Iterator[str]:
    """Checks values that were derived; those that were given are within their bounds."""
    for key, (low, high) in LIMITS.items():
        section, name = key.split(".")
        message = getattr(spec, section)
        value = getattr(message, name)
        if message.HasField(name) and not low <= value <= high:
            yield f"{key} = {value:g}: expected {low:g} to {high:g}"


def _champion_problem(champion: pb.ChampionSpec) -> str:
    if champion.ensemble > max(1, champion.reevaluate_top):
        return (
            f"champion.ensemble = {champion.ensemble}: members are chosen among the"
            f" {champion.reevaluate_top} candidates of champion.reevaluate_top; set that to at least as many"
        )
    return ""


def _problems_together(spec: pb.TournamentSpec) -> Iterator[str]:
    if not spec.objective.ListFields():
        yield (
            "objective: empty; set target_return, wall_clock_duration or environment_steps, otherwise the tournament"
            " would never end"
        )
    if spec.pool.HasField("maximum_pods") and spec.pool.maximum_pods < spec.pool.minimum_pods:
        yield (f"pool.maximum_pods = {spec.pool.maximum_pods}: less than pool.minimum_pods = {spec.pool.minimum_pods}")
    if spec.synchronous and spec.assignment.HasField("duration"):
        yield ("assignment.duration: a wall-clock limit is not reproducible; leave it out when synchronous = true")
    if spec.synchronous and spec.pod.learners > 1:
        yield (
            f"pod.learners = {spec.pod.learners}: learners that miss a fusion round are left out, which is not"
            " reproducible; use one learner when synchronous = true"
        )
    if spec.synchronous and not spec.pool.HasField("maximum_pods"):
        yield (
            "pool.maximum_pods: missing; with synchronous = true it is the number of agents in a"
            " round and must not depend on the machine"
        )
    if spec.synchronous and spec.evaluation.racing:
        yield (
            "evaluation.racing = true: which candidates the leaderboard knows when an evaluation begins is not"
            " reproducible; leave it out when synchronous = true"
        )
    yield _champion_problem(spec.champion)
    yield exchange.verification_problem(spec)
    yield from exchange.experience_problems(spec)
    yield from exchange.opponent_problems(spec)
    yield plugin_settings.evaluation_problem(spec.evaluation)
    yield from sizes.size_problems(spec)
    yield snapshot_schedule.too_short(spec.evaluation)
    yield snapshot_schedule.checkpoints_too_often(spec.assignment)
    yield data_leakage.leak(spec)
    yield objectives.objective_problem(spec)
    yield starts_problem(spec)
    for problem_of in (evolution_settings.misplaced, plugin_settings.evolution_problem, ancestor.malformed):
        yield problem_of(spec.evolution)
