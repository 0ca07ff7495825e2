"""Finds algorithms that installed distributions offer: entry points of the group `podrace.algorithms`.

    [project.entry-points."podrace.algorithms"]
    spo = "my_package.spo:SPO"

The operator of a machine has installed them, so they are trusted as podrace itself is.
"""

from functools import cache
from importlib import metadata

from podrace.plugins.address import PythonFunction, parse

GROUP = "podrace.algorithms"


@cache
def installed_algorithms() -> dict[str, str]:
    """Returns `module:Class` of each algorithm that is installed here, by its name in specifications.

    Of several distributions that offer the same name, the first in alphabetical order counts.
    """
    found = sorted(metadata.entry_points(group=GROUP), key=lambda one: (one.name, one.dist.name if one.dist else ""))
    return {one.name: one.value.replace(" ", "") for one in reversed(found)}


def class_of(name: str) -> PythonFunction | None:
    """Returns the class that a name of a specification stands for; None if it names none."""
    found = parse(name)
    if isinstance(found, PythonFunction):
        return found
    module, _, attribute = installed_algorithms().get(name, "").partition(":")
    return PythonFunction(module, attribute) if attribute else None
