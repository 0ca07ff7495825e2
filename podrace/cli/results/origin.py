"""Records which mesh the results in a folder come from, because a home has results of its own mesh and of others.

write_origin(folder, settings.orchestrator)    # when the folder is made
read_origin(folder) == OWN_MESH                # results of the embedded mesh of the home
"""

import json
from pathlib import Path

from podrace.cli.terminal.atomic_file import whole_file

FILE = "mesh.json"
OWN_MESH = ""
"""Origin of results of the embedded mesh of the home."""


def write_origin(folder: Path, orchestrator: str) -> None:
    """Records the mesh of the results in a folder.

    Args:
        folder: The folder, which exists.
        orchestrator: Address of the orchestrator, as `--orchestrator` names it; `OWN_MESH` for the embedded mesh.

    Raises:
        FailedPrecondition: The file cannot be written.
    """
    with whole_file(folder / FILE) as place:
        place.write_text(json.dumps({"orchestrator": orchestrator}) + "\n", encoding="utf-8")


def read_origin(folder: Path) -> str | None:
    """Returns what `write_origin` recorded; None if there is no record, as in folders of earlier versions."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    origin = found.get("orchestrator") if isinstance(found, dict) else None
    return origin if isinstance(origin, str) else None
