"""Shows the hyperparameters of a champion and their schedule as text or as JSON. Pure."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli.results.champion import ChampionMember, changing_values, short_names
from podrace.cli.results.champion_toml import specification_of
from podrace.cli.terminal import formats
from podrace.cli.views import family, tables
from podrace.printable import printable
from podrace.specification.files import to_values
from podrace.tournament.v1.tournament_pb2 import Tournament


def as_json(tournament: Tournament, members: Sequence[ChampionMember]) -> dict[str, Any]:
    """Shape of `show --champion`: the members of the champion, and the specification that trains as the first did."""
    known = tournament.HasField("best_score")
    return {
        "tournament_id": tournament.tournament_id,
        "best_score": tournament.best_score if known else None,
        "best_score_standard_error": tournament.best_score_standard_error if known else None,
        "members": [_member_values(member) for member in members],
        "specification": to_values(specification_of(tournament.spec, members[0])),
    }


def _member_values(member: ChampionMember) -> dict[str, Any]:
    return {
        "agent_id": member.agent_id,
        "candidate_id": member.candidate_id,
        "algorithm": member.algorithm,
        "environment_steps": member.environment_steps,
        "hyperparameters": dict(member.hyperparameters),
        "schedule": [
            {
                "agent_ids": list(stage.agent_ids),
                "begin_environment_steps": stage.begin_steps,
                "end_environment_steps": stage.end_steps,
                "algorithm": stage.algorithm,
                "hyperparameters": dict(stage.hyperparameters),
            }
            for stage in member.stages
        ],
    }


def as_text(tournament: Tournament, members: Sequence[ChampionMember]) -> RenderableType:
    """Returns the hyperparameters of each member as a table, below it how they changed."""
    parts: list[RenderableType] = []
    for member in members:
        name = formats.short(member.agent_id, tournament.tournament_id)
        steps = f"{formats.count(member.environment_steps)} steps"
        heading = f"champion {name}: {member.algorithm}, {steps}, candidate {member.candidate_id[:12]}"
        parts += [Text(printable(heading), style="bold"), _values_table(member)]
        if len(member.stages) > 1:
            parts += [Text("values that changed on the way:", style="dim"), _schedule_table(tournament, member)]
        parts.append(Text())
    return Group(*parts[:-1])


def _values_table(member: ChampionMember) -> Table:
    return tables.facts_table(
        (f"  {name}", family.plain(value)) for name, value in sorted(member.hyperparameters.items())
    )


def _schedule_table(tournament: Tournament, member: ChampionMember) -> Table:
    table = tables.EscapingTable.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for stage, values in zip(member.stages, changing_values(member), strict=True):
        steps = f"{formats.count(stage.begin_steps)} to {formats.count(stage.end_steps)} steps"
        held = ", ".join(f"{name} {family.plain(value)}" for name, value in values.items())
        table.add_row(f"  {steps}", ", ".join(short_names(stage, tournament.tournament_id)), held)
    return table
