"""Decides whether a role is stuck. Pure functions.

Rules:
- A role makes progress when its phase or its counter changes. An idle or waiting role makes progress by answering.
- A pod makes progress when a role is not idle, a counter changes or an update is made (agentpod.liveness.idle_pod).
- The deadline is a multiple of the usual longest time between the role's earlier progress in this phase, within a
  floor and a ceiling. That is the 99th percentile, or of 20 to 99 times the second longest: a single pause does not
  decide.
- The deadline is at least twice the longest of these times. So a step that is slow from time to time, such as every
  tenth or every hundredth, is not stuck when it takes as long as before.
- A role that opens, prepares, compiles or warms up has the ceiling. So has a role that has made
  progress less than a few times, unless its process is stopped.
- Each time a role was stuck that answered and whose process was not stopped, the next deadline is twice as long: it may
  only have been slow. This is forgotten after a while without a stuck role (agentpod.liveness.doublings).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

LEARNED = (
    pb.ROLE_PHASE_IDLE,
    pb.ROLE_PHASE_WAITING,
    pb.ROLE_PHASE_COLLECTING,
    pb.ROLE_PHASE_UPDATING,
    pb.ROLE_PHASE_EVALUATING,
)
"""Phases whose deadlines are learned."""
UNJUDGED = (pb.ROLE_PHASE_IDLE, pb.ROLE_PHASE_WAITING)
"""Phases in which a role makes progress by answering. They have one history, so WAITING has the deadline of IDLE."""
FEWEST_SAMPLES = 3
"""Samples from which on a deadline is learned."""
FEWEST_WITH_EXCEPTION = 20
"""Samples from which on the longest may be an exception."""
EXCEPTION_MULTIPLE = 2.0
"""The deadline is at least this many times the longest sample."""


@dataclass(frozen=True)
class Observation:
    """What is known about a role. Times are in seconds, on one monotonic clock."""

    phase: pb.RolePhase.ValueType
    """What it reported last."""
    progressed_at: float
    """When it was last seen to make progress."""
    history: Sequence[float]
    """Times between its earlier progress in this phase."""
    answers: bool = True
    """Whether it answered the last poll."""
    stopped: bool = False
    """Whether its process is stopped, for instance by SIGSTOP."""
    idle_pod: bool = False
    """Whether this is about all roles of a pod, none of which works."""
    stuck_before: int = 0
    """How many times it was stuck before although it answered and was not stopped."""


@dataclass(frozen=True)
class Verdict:
    """Whether a role is stuck."""

    stuck: bool
    deadline_seconds: float
    reason: str
    """Why, in one line."""


def judge(now: float, seen: Observation, options: ProgressDeadlines) -> Verdict:
    """Decides whether a role is stuck."""
    deadline, why = _deadline(seen, options)
    waited = now - seen.progressed_at
    if seen.idle_pod:
        what = "no role of the pod works"
    elif seen.stopped:
        what = "its process is stopped"
    elif not seen.answers:
        what = "it does not answer"
    else:
        what = "it makes no progress"
    reason = f"{what}: {waited:.1f} s in phase {phase_name(seen.phase)}; the deadline is {deadline:.1f} s ({why})"
    return Verdict(waited >= deadline, deadline, reason)


def _deadline(seen: Observation, options: ProgressDeadlines) -> tuple[float, str]:
    if seen.stopped:
        return options.floor_seconds, "the shortest one"
    if seen.phase not in LEARNED:
        return options.ceiling_seconds, "that of a phase that may take long"
    if len(seen.history) < FEWEST_SAMPLES:
        return options.ceiling_seconds, f"after {len(seen.history)} samples"
    usual, longest, count = usual_longest(seen.history), max(seen.history), len(seen.history)
    deadline, why = options.multiple * usual, f"{options.multiple:g} times the 99th percentile of {count} samples"
    why = f"{why}, {usual:.2f} s"
    if deadline < EXCEPTION_MULTIPLE * longest:
        deadline = EXCEPTION_MULTIPLE * longest
        why = f"{EXCEPTION_MULTIPLE:g} times the longest of {count} samples, {longest:.2f} s"
    return min(max(options.floor_seconds, deadline) * 2**seen.stuck_before, options.ceiling_seconds), why


def usual_longest(samples: Sequence[float]) -> float:
    """Returns the 99th percentile; of FEWEST_WITH_EXCEPTION to 99 samples the second largest."""
    if FEWEST_WITH_EXCEPTION <= len(samples) < 100:
        return sorted(samples)[-2]
    return percentile_99(samples)


def percentile_99(samples: Sequence[float]) -> float:
    """Returns the smallest sample that is not below 99 % of the samples."""
    ordered = sorted(samples)
    return ordered[-(-99 * len(ordered) // 100) - 1]


def phase_name(phase: pb.RolePhase.ValueType) -> str:
    """Returns the name of a phase for people; the number of one that this build does not know."""
    if phase not in pb.RolePhase.values():
        return str(phase)
    return pb.RolePhase.Name(phase).removeprefix("ROLE_PHASE_").lower().replace("_", " ")
