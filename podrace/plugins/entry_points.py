"""Finds classes and functions that installed distributions provide, by the entry points of the groups below.

    [project.entry-points."podrace.algorithms"]
    spo = "my_package.spo:SPO"
    [project.entry-points."podrace.networks"]
    residual = "my_package.networks:Residual"
    [project.entry-points."podrace.schedules"]
    warm_up = "my_package.schedules:warm_up"

The operator of the machine has installed these distributions, so they are trusted like podrace itself.
"""

from functools import cache
from importlib import metadata

from podrace.plugins.address import PythonFunction, parse

ALGORITHMS, NETWORKS, SCHEDULES = "podrace.algorithms", "podrace.networks", "podrace.schedules"
"""Groups of entry points."""


@cache
def installed(group: str = ALGORITHMS) -> dict[str, str]:
    """Returns `module:name` of each entry point of a group that is installed here, by its name in specifications.

    Of several distributions that offer the same name, the first in alphabetical order counts.
    """
    found = sorted(metadata.entry_points(group=group), key=lambda one: (one.name, one.dist.name if one.dist else ""))
    return {one.name: one.value.replace(" ", "") for one in reversed(found)}


def class_of(name: str, group: str = ALGORITHMS) -> PythonFunction | None:
    """Returns the class or function that a name of a specification stands for; None if it names none."""
    found = parse(name)
    if isinstance(found, PythonFunction):
        return found
    module, _, attribute = installed(group).get(name, "").partition(":")
    return PythonFunction(module, attribute) if attribute else None
