"""The tasks there are; each is imported when it is made, for the ant costs seconds."""

import importlib

TASKS = {
    "Ant": "ant",
    "Counter": "counters",
    "Crashing": "counters",
    "LateCounter": "counters",
    "Point": "point",
}


def find(name):
    """The class of a task."""
    return getattr(importlib.import_module(f"isaacgymenvs.tasks.{TASKS[name]}"), name)
