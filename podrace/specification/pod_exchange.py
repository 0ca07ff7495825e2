"""Checks the settings by which pods work for each other: verified candidates and shared experience. Pure."""

from collections.abc import Iterator

from podrace.specification.declared_algorithms import entry_of
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LEAST_EPISODES = 8
"""With fewer episodes, invented scores would pass as chance."""
OWN_SHARE = 0.5
CAPACITY_STEPS = 100_000
"""Defaults of `experience.own_share` and `experience.capacity_steps`, if experience is shared."""
REPLAYED = "replay_capacity"
"""Hyperparameter of all algorithms that learn from a replay memory."""


def verification_problem(spec: TournamentSpec) -> str:
    """Returns why `evaluation.verify` cannot work; empty if it can."""
    wanted, episodes = spec.evaluation.verify, spec.evaluation.episodes
    if not wanted:
        return ""
    key = f"evaluation.verify = {wanted}"
    if spec.synchronous:
        return f"{key}: which candidate is verified first is not reproducible; set it to 0 when synchronous = true"
    if spec.pool.HasField("maximum_pods") and spec.pool.maximum_pods < 2:
        return f"{key}: another pod must verify what a pod states; set pool.maximum_pods to 2 or more, or verify to 0"
    if not LEAST_EPISODES <= wanted <= max(LEAST_EPISODES, episodes):
        return f"{key}: expected 0, or {LEAST_EPISODES} to evaluation.episodes = {episodes}"
    return ""


def fill_experience(spec: TournamentSpec) -> None:
    """Fills in how experience is shared, if it is."""
    experience = spec.experience
    if not experience.shared:
        return
    if not experience.HasField("own_share"):
        experience.own_share = OWN_SHARE
    if not experience.HasField("capacity_steps"):
        experience.capacity_steps = CAPACITY_STEPS


def experience_problems(spec: TournamentSpec) -> Iterator[str]:
    """Yields why experience cannot be shared."""
    if not spec.experience.shared:
        return
    key = "experience.shared = true"
    if spec.synchronous:
        yield f"{key}: which steps have arrived is not reproducible; set it to false when synchronous = true"
    if spec.pod.learners > 1:
        yield f"{key}: followers of a pod would not receive it; set pod.learners = 1, or shared to false"
    for name in ("replay_bytes", "tournament_replay_bytes"):
        if not getattr(spec.assignment, name):
            yield f"{key}: agents read stored replay memories; set assignment.{name} above 0, or shared to false"
    entries = (entry_of(name, algorithm) for name, algorithm in spec.algorithms.items())
    if not any(entry is None or REPLAYED in entry.hyperparameters for entry in entries):
        yield f"{key}: no algorithm of the specification learns from a replay memory; add one, such as 'sac' or 'dqn'"
