"""Shows a Pareto front as text or as JSON. Pure."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.cli.views import json_shapes, tables
from podrace.client.hyperparameters import HyperparametersByAgent
from podrace.client.pareto import MAXIMIZE, ParetoFront

OFF_BOARD_NOTE = "rank -: not on the board, so its checkpoint may have been deleted"


def as_text(found: ParetoFront, tournament_id: str) -> RenderableType:
    """Returns one row for each candidate on the front, below a line with the measures and their directions."""
    words = [f"{one.name} ({'higher' if one.direction == MAXIMIZE else 'lower'} is better)" for one in found.measures]
    heading = f"{len(found.candidates)} of {found.compared} candidates are not dominated in {', '.join(words)}"
    names = [one.name for one in found.measures]
    table = tables.plain_table("rank", "agent", "algorithm", *names, "candidate", right=("rank", *names))
    for candidate in found.candidates:
        values = [one.value(candidate) for one in found.measures]
        table.add_row(
            str(candidate.rank or tables.NOTHING),
            formats.short(candidate.agent_id, tournament_id),
            candidate.algorithm,
            *(tables.NOTHING if value is None else f"{value:.6g}" for value in values),
            candidate.candidate_id[:12],
        )
    parts: list[RenderableType] = [Text(heading, style="bold"), table]
    if not all(candidate.rank for candidate in found.candidates):
        parts.append(Text(OFF_BOARD_NOTE, style="dim"))
    if found.left_out:
        parts.append(Text(f"{formats.things(found.left_out, 'candidate')} without all of these measures", style="dim"))
    return Group(*parts)


def as_json(found: ParetoFront, known: HyperparametersByAgent) -> dict[str, Any]:
    """Shape of `show --pareto`."""
    return {
        "measures": [{"name": one.name, "direction": one.direction} for one in found.measures],
        "compared": found.compared,
        "left_out": found.left_out,
        "candidates": [
            json_shapes.candidate(candidate, known)
            | {"measures": {one.name: one.value(candidate) for one in found.measures}}
            for candidate in found.candidates
        ],
    }
