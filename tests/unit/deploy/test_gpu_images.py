"""The images for GPUs have the library with which NCCL uses InfiniBand, and do not run as root."""

import re
from pathlib import Path

import pytest

DOCKERFILE = (Path(__file__).parents[3] / "deploy/Dockerfile").read_text()
STAGES = {
    name: (base, text)
    for base, name, text in re.findall(
        r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
}


def lineage(image: str) -> list[str]:
    """Returns the instructions of a stage and of those below it, the lowest first."""
    if image not in STAGES:
        return []
    base, text = STAGES[image]
    return [*lineage(base), text]


@pytest.mark.parametrize("image", ["agentpod-cuda12", "agentpod-cuda13"])
def test_an_image_for_gpus_has_the_library_of_infiniband_and_its_providers(image: str) -> None:
    text = "\n".join(lineage(image))
    (packages,) = re.findall(r'^ARG RDMA_PACKAGES="(.*)"$', text, re.MULTILINE)
    assert packages.split() == ["libibverbs1", "ibverbs-providers"]
    assert re.search(r"apt-get install .*\$\{RDMA_PACKAGES\}", text)


@pytest.mark.parametrize("image", ["agentpod", "agentpod-cuda12", "agentpod-cuda13", "simulators"])
def test_an_image_of_pods_does_not_run_as_root(image: str) -> None:
    users = re.findall(r"^USER (\S+)$", "\n".join(lineage(image)), re.MULTILINE)
    assert users[-1] == "10001:10001"
