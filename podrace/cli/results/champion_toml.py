"""Writes a champion as a specification in TOML, which `podrace train` accepts as it is. Pure."""

from collections.abc import Sequence

from google.protobuf import json_format

from podrace.cli.results.champion import ChampionMember, changing_values, short_names
from podrace.cli.terminal import formats
from podrace.cli.views import tables
from podrace.printable import printable
from podrace.specification import presets, resolve
from podrace.specification.files import to_toml, toml_literal
from podrace.tournament.v1.tournament_pb2 import HyperparameterSpec, Tournament, TournamentSpec

NEW_AGENTS = (
    "The specification trains new agents with these values: nothing is searched, and no checkpoint is reused. To start",
    "from the champion's checkpoint instead: podrace train FILE --ancestor AGENT",
)


def specification_of(spec: TournamentSpec, member: ChampionMember) -> TournamentSpec:
    """Returns the specification of a tournament with a single algorithm, whose values are those of an agent.

    Searched values of the environment become fixed hyperparameters, so policies are scored in the same environment as
    before. Nothing else changes, except that the tournament starts from no ancestor.

    Args:
        spec: Resolved specification of the tournament.
        member: The champion, or a member of it.

    Raises:
        InvalidArgument: The values are not valid in this version.
    """
    made = TournamentSpec()
    made.CopyFrom(spec)
    made.search = presets.DECLARED
    made.environment.search.clear()
    made.evolution.ClearField("ancestor_agent_id")
    made.algorithms.clear()
    algorithm = made.algorithms[member.algorithm]
    algorithm.ratio = 1.0
    for name, value in member.hyperparameters.items():
        json_format.ParseDict(value, algorithm.hyperparameters[name].value)
    made = resolve.resolve(made)
    # An agent of an earlier version lacks hyperparameters that were added since. Left out, they would be searched.
    for entry in made.algorithms[member.algorithm].hyperparameters.values():
        entry.CopyFrom(HyperparameterSpec(value=entry.value))
    return made


def champion_toml(tournament: Tournament, members: Sequence[ChampionMember]) -> str:
    """Returns the specification of the first member as TOML; comments hold its schedule and the other members.

    Args:
        tournament: The tournament.
        members: Its champion: one member, or those of an ensemble, the best first.
    """
    first, *others = members
    lines = [*_headline(tournament, members), *_schedule(tournament, first), ""]
    lines.append(to_toml(specification_of(tournament.spec, first)))
    for number, member in enumerate(others, start=2):
        lines += ["", *_comments(_other(tournament, number, member))]
    return "\n".join(lines) + "\n"


def _headline(tournament: Tournament, members: Sequence[ChampionMember]) -> list[str]:
    first = members[0]
    who = f"{tables.champion_name(tournament)} of {tournament.tournament_id}"
    score = f"score {tables.best_score(tournament)}"
    lines = [f"The hyperparameters of the champion {who}, {score}."]
    if len(members) > 1:
        lines.append(
            f"The champion is an ensemble of {formats.things(len(members), 'agent')}. The specification has the values"
            f" of the first, {formats.short(first.agent_id, tournament.tournament_id)};"
        )
        lines.append("those of the others are comments at the end.")
    return _comments([*lines, *(line.replace("AGENT", first.agent_id) for line in NEW_AGENTS)])


def _schedule(tournament: Tournament, member: ChampionMember) -> list[str]:
    """Returns the values of each stage as comments, which are a TOML array of tables without the comment marks."""
    if len(member.stages) == 1:
        steps = formats.count(member.environment_steps)
        return _comments([f"They did not change over its {steps} environment steps."])
    lines = [
        "They changed on the way to these values. The schedule, by environment steps of the policy:",
        "schedule = [",
    ]
    for stage, values in zip(member.stages, changing_values(member), strict=True):
        entry = {
            "from": stage.begin_steps,
            "to": stage.end_steps,
            "agents": short_names(stage, tournament.tournament_id),
            "hyperparameters": values,
        }
        lines.append(f"  {toml_literal(entry)},")
    return _comments([*lines, "]"])


def _other(tournament: Tournament, number: int, member: ChampionMember) -> list[str]:
    """Returns the section of a member that is not active, without comment marks."""
    own = TournamentSpec()
    specified = specification_of(tournament.spec, member).algorithms[member.algorithm]
    own.algorithms[member.algorithm].CopyFrom(specified)
    name = formats.short(member.agent_id, tournament.tournament_id)
    heading = f"Member {number} of the ensemble: {name}. To train it, replace the section [algorithms] by this one."
    return [heading, *to_toml(own).splitlines()]


def _comments(lines: Sequence[str]) -> list[str]:
    return [f"# {printable(line)}".rstrip() for line in lines]
