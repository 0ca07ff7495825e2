"""Reads what the Docker Engine reports about the container of a pod's leader."""

from datetime import datetime
from typing import Any

from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod
from orchestrator.launchers.log_tail import last_line_of
from orchestrator.launchers.pod_settings import LAYOUTS

TAIL_LINES = 20


def listed_pod(leader: Any) -> ListedPod:
    """Returns the pod that the labels of its leader's container describe."""
    labels = {key.removeprefix("podrace."): value for key, value in leader.labels.items()}
    gpus = labels["gpus"].split(",") if labels["gpus"] else []
    return ListedPod(
        pod_id=labels["pod"],
        tournament_id=labels["tournament"],
        start_time=_seconds(leader.attrs["Created"]),
        layout=LAYOUTS[labels["layout"]],
        reserved=Resources(float(labels["cores"]), int(labels["memory_bytes"]), len(gpus)),
    )


def _seconds(created: str) -> float:
    """Converts the engine's time, which has nanoseconds and a Z, to seconds since 1970."""
    seconds_text = created.partition(".")[0].removesuffix("Z")
    return datetime.fromisoformat(f"{seconds_text}+00:00").timestamp()


def last_log_line(container: Any) -> str:
    """Returns the last line that a container wrote, or how it ended."""
    from docker.errors import DockerException

    try:
        log = container.logs(tail=TAIL_LINES).decode(errors="replace")
    except DockerException:
        log = ""
    state = container.attrs.get("State", {})
    end = "killed: out of memory" if state.get("OOMKilled") else f"exit code {state.get('ExitCode')}"
    return last_line_of(log) or end
