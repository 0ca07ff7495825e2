"""Checks the settings of plugins in a specification and fills in their defaults. Pure.

The generator and the updater are settings of `[evolution]`, the evaluator of `[evaluation]`, the worker of `[pod]`.
The form of an address is defined in podrace.plugins.address.
"""

from podrace.plugins import address
from podrace.tournament.v1.tournament_pb2 import (
    LAYOUT_SEPARATE,
    LAYOUT_UNSPECIFIED,
    EvaluationSpec,
    EvolutionSpec,
    TournamentSpec,
)

EVOLUTION_ANSWER_SECONDS = 5.0
"""Default of `evolution.answer_duration`."""
EVOLUTION_ANSWER_LIMITS = (0.05, 8.0)
"""Shortest and longest `evolution.answer_duration` in seconds. A pod that waits for an agent, or for the answer to a
submission, waits 10 s."""
EVALUATION_ANSWER_SECONDS = 300
"""Default of `evaluation.answer_duration`."""
LONGEST_EVALUATION_ANSWER_SECONDS = 1800
"""Deadline of EvaluatePolicy in the contract."""


def fill_evolution(evolution: EvolutionSpec) -> None:
    """Fills in the default of `answer_duration` if a generator or an updater is named."""
    if _named(evolution) and not evolution.HasField("answer_duration"):
        evolution.answer_duration.FromNanoseconds(round(EVOLUTION_ANSWER_SECONDS * 1e9))


def evolution_problem(evolution: EvolutionSpec) -> str:
    """Returns what is wrong with the plugins of `[evolution]`; empty if nothing is."""
    named = _named(evolution)
    for part in named:
        given: str = getattr(evolution, part)
        if address.parse(given) is None:
            return f"evolution.{part} = {given!r}: {address.EXPECTED}"
    if evolution.HasField("answer_duration"):
        seconds = evolution_answer_seconds(evolution)
        if not named:
            return (
                f"evolution.answer_duration = {seconds:g} s: is a setting of evolution.generator and updater; name one"
            )
        low, high = EVOLUTION_ANSWER_LIMITS
        if not low <= seconds <= high:
            return f"evolution.answer_duration = {seconds:g} s: expected {low:g} s to {high:g} s"
    return ""


def evolution_answer_seconds(evolution: EvolutionSpec) -> float:
    """Returns the time limit of one answer of a generator or an updater."""
    return evolution.answer_duration.ToNanoseconds() / 1e9


def _named(evolution: EvolutionSpec) -> list[str]:
    """Returns which of the keys `generator` and `updater` are set."""
    return ["generator"] * evolution.HasField("generator") + ["updater"] * evolution.HasField("updater")


def fill_evaluation(evaluation: EvaluationSpec) -> None:
    """Fills in the default of `answer_duration` if an evaluator is named."""
    if evaluation.HasField("evaluator") and not evaluation.HasField("answer_duration"):
        evaluation.answer_duration.FromSeconds(EVALUATION_ANSWER_SECONDS)


def evaluation_problem(evaluation: EvaluationSpec) -> str:
    """Returns what is wrong with the evaluator of `[evaluation]`; empty if nothing is."""
    seconds = evaluation_answer_seconds(evaluation)
    if not evaluation.HasField("evaluator"):
        alone = evaluation.HasField("answer_duration")
        return f"evaluation.answer_duration = {seconds:g} s: is a setting of evaluation.evaluator; name one" * alone
    if address.parse(evaluation.evaluator) is None:
        return f"evaluation.evaluator = {evaluation.evaluator!r}: {address.EXPECTED}"
    if evaluation.racing:
        return "evaluation.racing = true: evaluator plugins play all episodes in one call; leave it out"
    if seconds > LONGEST_EVALUATION_ANSWER_SECONDS:
        return f"evaluation.answer_duration = {seconds:g} s: expected at most {LONGEST_EVALUATION_ANSWER_SECONDS} s"
    return ""


def evaluation_answer_seconds(evaluation: EvaluationSpec) -> float:
    """Returns the time limit of one score."""
    return evaluation.answer_duration.ToNanoseconds() / 1e9


def fill_worker(spec: TournamentSpec) -> None:
    """Fills in the only values that go with a worker of a third party: one pod, its own process, the plane `grpc`."""
    if not is_service(spec.pod.worker):
        return
    if not spec.pool.HasField("maximum_pods"):
        spec.pool.maximum_pods = 1
    if not spec.pod.HasField("plane"):
        spec.pod.plane = "grpc"
    if spec.pod.layout == LAYOUT_UNSPECIFIED:
        spec.pod.layout = LAYOUT_SEPARATE


def is_service(worker: str) -> bool:
    """Whether the value of `pod.worker` names a program of a third party, and not a class."""
    return worker.startswith("grpc://")


def worker_problem(spec: TournamentSpec) -> str:
    """Returns what is wrong with the worker of a third party; empty if nothing is, or there is none."""
    pod = spec.pod
    if not pod.HasField("worker"):
        return ""
    found = address.parse(pod.worker)
    if found is None:
        return f"pod.worker = {pod.worker!r}: expected grpc://host:port, grpc://unix:/path or python:module:Class"
    if not isinstance(found, address.GrpcService):
        return ""
    for key, value in (("workers", pod.workers), ("learners", pod.learners), ("hosts", pod.hosts)):
        if value != 1:
            return f"pod.{key} = {value}: pod.worker is one worker, which serves one learner; set it to 1"
    if spec.pool.maximum_pods != 1:
        return f"pool.maximum_pods = {spec.pool.maximum_pods}: pod.worker serves one pod at a time; set it to 1"
    if pod.layout != LAYOUT_SEPARATE or pod.plane != "grpc":
        return "pod.worker: needs pod.layout = 'separate' and pod.plane = 'grpc'; leave both out"
    return ""
