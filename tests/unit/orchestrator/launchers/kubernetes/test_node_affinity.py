"""Which nodes match the required node affinity of a pod."""

from typing import Any

import pytest

from orchestrator.launchers.kubernetes.node_affinity import REQUIRED, allows

PRODUCT = "nvidia.com/gpu.product"
NODE = {"metadata": {"name": "dgx-1", "labels": {PRODUCT: "NVIDIA-H200", "nvidia.com/gpu.count": "8"}}}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("expressions", "matches"),
    [
        ([expression(PRODUCT, "In", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200")], True),
        ([expression(PRODUCT, "In", "NVIDIA-H100-80GB-HBM3")], False),
        ([expression(PRODUCT, "NotIn", "NVIDIA-H200")], False),
        ([expression("other", "NotIn", "x")], True),
        ([expression(PRODUCT, "Exists"), expression("other", "DoesNotExist")], True),
        ([expression(PRODUCT, "Exists"), expression("other", "Exists")], False),
        ([expression("nvidia.com/gpu.count", "Gt", "7")], True),
        ([expression("nvidia.com/gpu.count", "Lt", "8")], False),
        ([expression(PRODUCT, "Gt", "1")], False),
    ],
)
def test_all_expressions_of_a_term_must_match(expressions: list[dict[str, Any]], matches: bool) -> None:
    assert allows(NODE, affinity({"matchExpressions": expressions})) is matches


def test_any_term_may_match_and_an_empty_one_matches_no_node() -> None:
    other = {"matchExpressions": [expression(PRODUCT, "In", "NVIDIA-B200")]}
    named = {"matchFields": [expression("metadata.name", "In", "dgx-1")]}
    assert allows(NODE, affinity(other, named))
    assert not allows(NODE, affinity(other, {}))


@pytest.mark.parametrize("given", [None, {}, {"podAntiAffinity": {}}, {"nodeAffinity": {"preferred": []}}])
def test_without_a_required_affinity_every_node_matches(given: dict[str, Any] | None) -> None:
    assert allows(NODE, given)
