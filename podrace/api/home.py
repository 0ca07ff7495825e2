"""Chooses the home of an embedded mesh and its store, as the command does."""

import os
from pathlib import Path

DEFAULT_HOME = "podrace-home"


def chosen_home(home: str | Path | None) -> Path:
    """Returns the folder of an embedded mesh: the given one, PODRACE_HOME, or `podrace-home`."""
    return Path(home or os.environ.get("PODRACE_HOME") or DEFAULT_HOME)


def chosen_store(store: str) -> str:
    """Returns the store of a new home as a URI: the given one or PODRACE_STORE; empty: a folder in the home."""
    return store or os.environ.get("PODRACE_STORE", "")
