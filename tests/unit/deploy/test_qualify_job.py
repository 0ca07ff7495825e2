"""The Job that examines the GPUs of a node is valid, hardened, and runs the whole report."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agentpod.qualification.config import QualifyConfig
from podrace.config import config_from_arguments
from podrace.qualification.parts import PARTS, chosen_parts, limit_of

JOB = Path(__file__).parents[3] / "deploy/k8s/qualify.yaml"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(JOB.read_text())
    return found


def test_the_job_is_valid(job: dict[str, Any]) -> None:
    kubernetes_validate.validate(job, "1.37", strict=True)


def test_the_job_runs_all_parts_and_lives_longer_than_their_limits(job: dict[str, Any]) -> None:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    assert command == "qualify"
    assert container["image"].startswith("podrace/agentpod-cuda:")
    config = config_from_arguments(QualifyConfig, arguments, program="agentpod-qualify")
    assert chosen_parts(config.parts) == list(PARTS)
    assert job["spec"]["activeDeadlineSeconds"] > sum(limit_of(part, quick=False) for part in PARTS)


def test_the_job_has_a_gpu_shared_memory_and_few_rights(job: dict[str, Any]) -> None:
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (shm,) = (volume for volume in pod["volumes"] if volume["name"] == mounts["/dev/shm"])
    assert shm["emptyDir"]["medium"] == "Memory"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
