"""Checks whether candidates that would lead can be verified by another pod (`evaluation.verify`). Pure."""

from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LEAST_EPISODES = 8
"""With fewer episodes, invented scores would pass as chance."""


def problem(spec: TournamentSpec) -> str:
    """Returns why the setting of a specification cannot work; empty if it can."""
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
