"""Implements `podrace lineage`: shows the ancestry of agents, and replays the decisions of a tournament."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from podrace.cli import EXIT_FAILED, session
from podrace.cli.commands import retrain as retraining
from podrace.cli.results.champion import submitted_elsewhere
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import check_file, whole_file
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views import family, family_svg, json_shapes
from podrace.cli.views.family import FamilyMember, Members
from podrace.cli.views.tables import EscapingTable
from podrace.client import Client, resolve
from podrace.client.champion import members_of_champion
from podrace.config import unknown
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament


@click.command()
@click.argument("subject", metavar="TOURNAMENT|AGENT")
@click.option(
    "--agent",
    default="",
    metavar="AGENT",
    help="Show only this agent (for instance a12), its ancestors and its descendants.",
)
@click.option(
    "--svg", type=click.Path(path_type=Path), metavar="FILE", help="Also draw the family tree as this SVG file."
)
@click.option(
    "--replay", is_flag=True, help="Repeat every decision of the tournament and compare; exit code 1 if any differs."
)
@click.option(
    "--retrain",
    is_flag=True,
    help="Train AGENT again from its manifest and compare its checkpoint files; exit code 1 if any differs.",
)
@mesh_options
def lineage(settings: Settings, subject: str, agent: str, svg: Path | None, replay: bool, retrain: bool) -> int:
    """Show the ancestry of agents, or repeat decisions or a training run to verify them.

    TOURNAMENT is an id, a prefix of one, or `latest`. It shows all families: the score and compute of each agent, the
    hyperparameters that differ from its parent, and how the champion's hyperparameters changed along its line. AGENT is
    <tournament>-a<number>. It shows the ancestors of the agent and why each was generated. --retrain trains the agent
    again from its start. Identical files are guaranteed only for synchronous tournaments with the same software
    versions on the same machine.
    """
    if replay and (agent or svg):
        raise InvalidArgument("lineage: --replay compares decisions and draws nothing; omit --agent and --svg")
    if svg is not None:
        check_file(svg, "--svg")
    if retrain:
        if replay or agent or svg:
            raise InvalidArgument("lineage: --retrain takes only AGENT; omit --replay, --agent and --svg")
        return _retrain(settings, subject)

    session.require_tournaments(settings)
    return session.run_query(settings, lambda client: _lineage(settings, client, subject, agent, svg, replay=replay))


async def _lineage(
    settings: Settings, client: Client, subject: str, agent: str, svg: Path | None, *, replay: bool
) -> int:
    """Shows or draws the families of a tournament or the ancestors of an agent, or replays the tournament."""
    tournament, agent_id = await _find(client, subject, settings)
    if agent_id and agent:
        raise InvalidArgument(f"lineage: {subject} and --agent {agent} both name an agent; give only one")
    if replay:
        return await _replay(settings, client, tournament)
    submissions = await client.list_submissions(tournament)
    agents = await client.list_agents(tournament)
    ancestors = await _started_from(client, tournament, agents)
    elsewhere = await submitted_elsewhere(client, tournament, ancestors)
    members = family.make_members([*ancestors, *agents], [*elsewhere, *submissions])
    if agent_id:
        kin = await client.get_lineage(tournament, agent_id)
        _show_ancestors(settings, kin, [*await submitted_elsewhere(client, tournament, kin), *submissions])
    chosen = _agent_id(agent, members, tournament) if agent else agent_id
    if chosen:
        members = family.relatives_of(chosen, members)
    if not agent_id:
        _show_families(settings, tournament, members, submissions, of=chosen or tournament.best_agent_id)
    if svg is not None:
        _draw(svg, members, tournament)
    return 0


async def _find(client: Client, subject: str, settings: Settings) -> tuple[Tournament, str]:
    """Returns the tournament that the subject names, and the id of the agent if it names one."""
    tournaments = {tournament.tournament_id: tournament for tournament in await client.list_tournaments()}
    agent = resolve.resolve_agent(subject, list(tournaments))
    if agent:
        return tournaments[agent[0]], agent[1]
    return tournaments[resolve.resolve_tournament(subject, list(tournaments), where=settings.where)], ""


async def _started_from(client: Client, tournament: Tournament, agents: Sequence[Agent]) -> list[Agent]:
    """Returns the agents of other tournaments from which this tournament started."""
    known = {agent.agent_id for agent in agents}
    parents = dict.fromkeys(parent for agent in agents for parent in agent.parent_agent_ids if parent not in known)
    return [(await client.get_lineage(tournament, parent))[0] for parent in parents]


def _retrain(settings: Settings, subject: str) -> int:
    """Trains one agent again. Disconnects from the mesh first, because the training takes long."""
    found: list[tuple[Tournament, str, list[Candidate]]] = []

    async def query(client: Client) -> int:
        tournament, agent_id = await _find(client, subject, settings)
        if not agent_id:
            raise InvalidArgument(f"lineage: --retrain {subject}: name an agent, for instance {subject}-a0")
        found.append((tournament, agent_id, await client.list_submissions(tournament)))
        return 0

    session.require_tournaments(settings)
    code = session.run_query(settings, query)
    if code or not found:
        return code
    tournament, agent_id, candidates = found[-1]
    return session.run(lambda interrupts: retraining.retrain(settings, agent_id, candidates, tournament.spec))


async def _replay(settings: Settings, client: Client, tournament: Tournament) -> int:
    replayed = await client.replay_tournament(tournament)
    if settings.as_json:
        show_json(
            {
                "agents": replayed.agents,
                "submissions": replayed.submissions,
                "differences": list(replayed.differences),
            }
        )
    else:
        agents = formats.things(replayed.agents, "agent")
        submissions = formats.things(replayed.submissions, "submission")
        differences = formats.things(len(replayed.differences), "difference")
        repeated = f"{agents} generated and {submissions} judged again"
        show(f"{tournament.tournament_id}: {repeated}, {differences}")
        for difference in replayed.differences:
            show(f"  {difference}")
    return EXIT_FAILED if replayed.differences else 0


def _best_by_agent(submissions: Sequence[Candidate]) -> dict[str, Candidate]:
    """Returns the best submission of each agent, in order of their first submissions: parents come first."""
    best: dict[str, Candidate] = {}
    for candidate in submissions:
        if candidate.agent_id not in best or candidate.score > best[candidate.agent_id].score:
            best[candidate.agent_id] = candidate
    return best


def _agent_id(text: str, members: Members, tournament: Tournament) -> str:
    """Returns the agent that the user named as `12`, `a12` or by its full id.

    Raises:
        NotFound: There is no such agent.
    """
    names = {member.name: agent_id for agent_id, member in members.items()}
    name = formats.short(text, tournament.tournament_id)
    name = f"a{name}" if name.isdecimal() else name
    if name not in names:
        line = unknown(tournament.tournament_id, "agent", name, names)
        raise NotFound(
            line if "did you mean" in line else f"{line.partition(';')[0]}; there are {len(names)} agents, from a0 on"
        )
    return names[name]


# --- all families ------------------------------------------------------------------------------------------------


def _show_families(
    settings: Settings, tournament: Tournament, members: Members, submissions: Sequence[Candidate], *, of: str
) -> None:
    """Shows the family trees, and how the hyperparameters changed along the line to the agent `of`."""
    if settings.as_json:
        kept = [candidate for name, candidate in _best_by_agent(submissions).items() if name in members]
        known = {name: member.hyperparameters for name, member in members.items() if member.hyperparameters}
        show_json([json_shapes.candidate(candidate, known) | {"depth": candidate.depth} for candidate in kept])
        return
    root = Tree(Text(printable(tournament.tournament_id), style="bold"), guide_style="dim")
    nodes: dict[str, Tree] = {"": root}
    entries = family.outline(members, family.line_of(of, members))
    champions = {one.agent_id for one in members_of_champion(tournament)}
    for entry in entries:
        member = members[entry.agent_id]
        champion = entry.agent_id in champions
        text = _member_text(member, members.get(member.parent_id), champion=champion)
        nodes[entry.agent_id] = nodes[entry.below].add(
            Text("↓ ", style="dim") + text if entry.continues_parent else text
        )
    show(root)
    if any(entry.continues_parent for entry in entries):
        show(Text("↓ child of the previous agent at the same indent", style="dim"))
    line = [members[name] for name in family.line_of(of, members)]
    if family.schedule(line):
        show("")
        show(Text(printable(f"hyperparameters along the line to {line[-1].name}"), style="bold"))
        show(_schedule_table(line))


def _member_text(member: FamilyMember, parent: FamilyMember | None, *, champion: bool) -> Text:
    """Returns one line with algorithm, score, steps, compute and changed hyperparameters of an agent."""
    text = Text(printable(member.name), style="bold" if champion else "")
    text.append(f"  {printable(member.algorithm)}  ", style="not bold dim")
    if member.best:
        text.append(formats.score(member.best.score, member.best.standard_error))
        steps = formats.count(member.best.environment_steps)
        text.append(f"  {steps} steps  {family.compute(member.core_seconds)}", style="not bold dim")
    else:
        text.append("no score", style="not bold dim")
    if champion:
        text.append("  champion", style="bold green")
    changed = family.changes(member, parent).items()
    if changed:
        changes = ", ".join(f"{name} {family.plain(old)} → {family.plain(new)}" for name, (old, new) in changed)
        text.append(f"  {printable(changes)}", style="not bold cyan")
    return text


def _schedule_table(line: Sequence[FamilyMember]) -> Table:
    """Returns the values of each changed hyperparameter with the environment steps at which they changed."""
    table = EscapingTable.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, track in family.schedule(line).items():
        values = [f"{family.plain(one.value)} (from {formats.count(one.environment_steps)})" for one in track]
        table.add_row(f"  {name}", " → ".join(values))
    return table


def _draw(path: Path, members: Members, tournament: Tournament) -> None:
    """Writes the family tree as an SVG file.

    Raises:
        FailedPrecondition: There are no agents, or the file cannot be written.
    """
    if not members:
        raise FailedPrecondition(f"{tournament.tournament_id} has no agents yet: there is nothing to draw")
    line = family.line_of(tournament.best_agent_id, members)
    title = f"{tournament.tournament_id} on {tournament.spec.environment.id}"
    text = family_svg.draw(members, family.lay_out(members, line), line, title=title)
    with whole_file(path, "--svg") as place:
        place.write_text(text, encoding="utf-8")
    notify(f"the family tree is in {path}")


# --- one agent ---------------------------------------------------------------------------------------------------


def _show_ancestors(settings: Settings, agents: Sequence[Agent], submissions: Sequence[Candidate]) -> None:
    """Shows an agent below its ancestors.

    Args:
        settings: Options of the command.
        agents: The agent, then its ancestors, nearest first.
        submissions: Submissions of the tournament in order of arrival.
    """
    if settings.as_json:
        show_json([json_shapes.agent(agent) for agent in agents])
        return
    kin = {agent.agent_id for agent in agents}
    members = family.make_members(reversed(agents), [entry for entry in submissions if entry.agent_id in kin])
    root = Tree("", guide_style="dim", hide_root=True)
    nodes: dict[str, Tree] = {"": root}
    for agent_id, member in members.items():
        nodes[agent_id] = nodes[member.parent_id].add(_ancestor_text(member, members.get(member.parent_id)))
    show(root)


def _ancestor_text(member: FamilyMember, parent: FamilyMember | None) -> Text:
    text = Text(printable(member.name), style="bold")
    text.append(f"  {member.origin}", style="dim")
    if member.best:
        text.append(f"  {formats.score(member.best.score, member.best.standard_error)}", style="not bold")
    text.append(f"  {printable(member.reason)}", style="not bold dim")
    for name, (before, after) in family.changes(member, parent).items():
        change = printable(f"{name} {family.plain(before)} → {family.plain(after)}")
        text.append(f"\n    {change}", style="not bold cyan")
    return text
