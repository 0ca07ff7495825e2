"""Specifications that request GPUs also reserve memory: the default is 1 GiB, which a process with CUDA exceeds."""

import tomllib
from collections.abc import Iterator
from typing import Any

from doc_blocks import REPOSITORY, all_blocks

GIB = 1 << 30
BYTES_PER_GPU = 16 * GIB


def specifications() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((REPOSITORY / "examples").rglob("*.toml")):
        yield str(path), tomllib.loads(path.read_text())
    for block in all_blocks():
        if block.language == "toml":
            yield str(block), tomllib.loads(block.text)


def test_every_documented_specification_with_gpus_reserves_memory_for_them() -> None:
    pods = {name: values["pod"] for name, values in specifications() if values.get("pod", {}).get("gpus")}
    assert len(pods) >= 5
    assert not [name for name, pod in pods.items() if pod.get("memory_bytes", 0) < pod["gpus"] * BYTES_PER_GPU]
