"""Finds tasks by name; each is imported when it is made, because the ant takes seconds to import."""

import importlib

TASKS = {
    "Ant": "ant",
    "Counter": "counters",
    "Crashing": "counters",
    "LateCounter": "counters",
    "Point": "point",
}


def find(name):
    """Returns the class of a task."""
    return getattr(importlib.import_module(f"isaacgymenvs.tasks.{TASKS[name]}"), name)
