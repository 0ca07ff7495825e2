"""Every ConfigMap that an overlay or a component renders is read by a container, and accepted by its program."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_dashboard_manifests import dashboard_arguments
from test_manifests import (
    COMPONENTS,
    KUBERNETES,
    OVERLAYS,
    combined,
    pod_specs,
    rendered,
    scratch,
    service_configuration,
)
from test_serving_manifests import serving_configuration

from podrace.errors import InvalidArgument

__all__ = ["scratch"]
Objects = list[dict[str, Any]]
CHECKS: dict[str, Callable[[Objects], object]] = {
    "podrace-orchestrator": lambda objects: service_configuration(objects, "orchestrator"),
    "podrace-leaderboard": lambda objects: service_configuration(objects, "leaderboard"),
    "podrace-serving": serving_configuration,
    "podrace-dashboard": lambda objects: dashboard_arguments(objects).settings.check(),
}
"""Reads and checks the configuration of a program as the program does, by the name of its ConfigMap."""
OF_OTHER_PROGRAMS = {"podrace-mps": "the device plugin of NVIDIA"}
HASH = re.compile(r"-[a-z0-9]{10}$")


def config_maps(objects: Objects) -> dict[str, dict[str, Any]]:
    """Returns the ConfigMaps by name, without the hash that kustomize adds."""
    return {HASH.sub("", one["metadata"]["name"]): one for one in objects if one["kind"] == "ConfigMap"}


def keys_read(objects: Objects, config_map: dict[str, Any]) -> Iterator[str]:
    """Yields the keys of a ConfigMap that a container gets; of a whole one, those of the settings of the container."""
    name = config_map["metadata"]["name"]
    for _, spec in pod_specs(objects):
        for container in spec["containers"]:
            if name in [source["configMapRef"]["name"] for source in container.get("envFrom", ())]:
                prefix = f"PODRACE_{container['name'].upper()}__"
                yield from (key for key in config_map["data"] if key.startswith(prefix))
            for entry in container.get("env", ()):
                reference = entry.get("valueFrom", {}).get("configMapKeyRef", {})
                if reference.get("name") == name:
                    yield reference["key"]


def check_all(objects: Objects) -> None:
    found = config_maps(objects)
    assert found.keys() >= {"podrace-orchestrator", "podrace-leaderboard"}
    assert found.keys() <= CHECKS.keys() | OF_OTHER_PROGRAMS.keys(), "nothing checks these"
    for name in found.keys() & CHECKS.keys():
        assert set(found[name]["data"]) <= set(keys_read(objects, found[name])), f"{name}: nothing reads some keys"
        CHECKS[name](objects)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_config_map_of_an_overlay_is_read_and_accepted(overlay: str) -> None:
    check_all(rendered(KUBERNETES / "overlays" / overlay))


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_config_map_of_a_component_is_read_and_accepted(component: str, scratch: Path) -> None:
    check_all(combined(scratch, (component,)))


def test_every_check_is_of_a_config_map_that_is_rendered(scratch: Path) -> None:
    found = {name for component in COMPONENTS for name in config_maps(combined(scratch, (component,)))}
    assert found == CHECKS.keys() | OF_OTHER_PROGRAMS.keys()


@pytest.mark.parametrize(
    ("name", "key", "value", "error", "line"),
    [
        ("podrace-leaderboard", "PODRACE_LEADERBORD__STORE", "/s", AssertionError, "nothing reads some keys"),
        ("podrace-leaderboard", "PODRACE_LEADERBOARD__STOR", "/s", InvalidArgument, "did you mean"),
        ("podrace-leaderboard", "PODRACE_LEADERBOARD__LOW_WATER_BYTES", "-1", InvalidArgument, "expected at least 0"),
        ("podrace-orchestrator", "PODRACE_ORCHESTRATOR__KEEP_DAYS", "-1", InvalidArgument, "keep_days = -1"),
    ],
)
def test_a_mistake_is_found(name: str, key: str, value: str, error: type[Exception], line: str) -> None:
    objects = json.loads(json.dumps(rendered(KUBERNETES / "base")))
    config_maps(objects)[name]["data"][key] = value
    with pytest.raises(error, match=line):
        check_all(objects)


def test_a_config_map_without_a_check_is_found() -> None:
    extra = {"kind": "ConfigMap", "metadata": {"name": "podrace-another"}, "data": {"PODRACE_ANOTHER__KEY": "1"}}
    with pytest.raises(AssertionError, match="nothing checks these"):
        check_all([*rendered(KUBERNETES / "base"), extra])
