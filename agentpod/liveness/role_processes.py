"""Finds the processes of a pod's roles, if they were forked on this host and can be signalled from here."""

import json
from pathlib import Path

from podrace.processes.identity import Process, boot_id

POD_FILE = "pod.json"


def find_process(folder: Path, role: str) -> Process | None:
    """Returns the process of a role; None if it runs in another container, or was not forked."""
    try:
        content = json.loads((folder / POD_FILE).read_text())
        found = content["roles"][role]
        process = Process(int(found["pid"]), int(found["start_ticks"]))
        return process if content["boot_id"] == boot_id() and process.lives else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
