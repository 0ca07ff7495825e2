"""Defines the ways to connect the roles of a pod that are tried, and grades what is common to all trials."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from podrace.qualification.findings import Finding, Grade

PART = "planes"
RESTART_SECONDS = 60.0
"""Time in which a pod must train again after its worker was killed."""
WORKER = "worker-0"
OPENED = "environments open"
"""Event of a worker's log with its device."""
LOGGED_DEVICE = re.compile(r"\bdevice(?:=|\": ?\")([\w:]+)")
"""The device in a line of a log, for terminals or in JSON."""


@dataclass(frozen=True)
class PlaneCase:
    """One way to connect the roles of a pod."""

    name: str
    layout: str
    plane: str
    """Value of `pod.plane`."""
    scheme: str
    """Plane that must be used, with a GPU."""
    scheme_without: str
    """Plane that is used without one; empty: the case needs a GPU."""
    gpus: int
    on_gpu: bool
    """Whether the worker must compute on a GPU."""


CASES = (
    PlaneCase("memory", "fused", "auto", "gpu-memory", "memory", 1, True),
    PlaneCase("cuda", "separate", "cuda", "cuda", "", 1, True),
    PlaneCase("group", "separate", "group", "group", "group", 2, True),
    PlaneCase("shared", "separate", "shared", "shared", "shared", 1, False),
    PlaneCase("grpc", "separate", "grpc", "grpc", "grpc", 1, False),
)


def device_finding(name: str, device: str, expected: str) -> Finding:
    """Grades the device on which a worker computed. Pure."""
    there = device.partition(":")[0] == expected
    remedy = "" if there else "report this line: the simulator steps where it was not meant to"
    return Finding(PART, name, Grade.PASS if there else Grade.FAIL, device or "not logged", expected, remedy=remedy)


def kill_finding(name: str, seconds: float | None, limit: float, what: str) -> Finding:
    """Grades what happened after a kill: `what` must have happened within `limit` seconds. Pure."""
    expected = f"{what} within {limit:.0f} s"
    if seconds is None:
        remedy = f"read the log with `podrace qualify --part {PART} --debug`"
        return Finding(PART, name, Grade.FAIL, f"not: {what}", expected, remedy=remedy)
    return Finding(PART, name, Grade.PASS, f"{what} after {seconds:.1f} s", expected)


def spec_of(case: PlaneCase, gpus: int) -> Mapping[str, Any]:
    """Returns the sections of the specification of a case."""
    # Stand-ins on processors must fit on small machines.
    pod: dict[str, Any] = {"layout": case.layout, "cores": 2 if gpus else 1, "gpus": min(gpus, case.gpus)}
    return {
        "environment": {"id": "cartpole", "count": 64},
        "algorithms": {"ppo": {"hyperparameters": {"horizon": 32, "minibatch_size": 512, "hidden_sizes": [32]}}},
        "assignment": {"environment_steps": 10**9},
        "evaluation": {"episodes": 4, "every_environment_steps": 10**8},
        "pod": pod if case.plane == "auto" else pod | {"plane": case.plane},
    }
