"""`podrace lineage`: who descends from whom, and whether every decision would be taken again."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from google.protobuf import json_format
from rich.text import Text
from rich.tree import Tree

from podrace.cli import EXIT_FAILED, formats, resolve, session, shapes
from podrace.cli.clients import Clients
from podrace.cli.options import Settings, mesh_options
from podrace.cli.output import show, show_json
from podrace.cli.specification import whole
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, Origin
from podrace.tournament.v1.tournament_pb2 import Tournament


@click.command()
@click.argument("subject", metavar="TOURNAMENT|AGENT")
@click.option(
    "--replay", is_flag=True, help="Take every decision of the tournament again and compare; 1 if any differs."
)
@mesh_options
def lineage(settings: Settings, subject: str, replay: bool) -> int:
    """Show who descends from whom.

    TOURNAMENT is an id, its beginning, or `latest`, and shows all families; AGENT is <tournament>-a<number> and shows
    its ancestors and what each changed.
    """

    async def query(clients: Clients) -> int:
        tournament, agent_id = await _find(clients, subject, settings)
        if replay:
            return await _replay(settings, clients, tournament)
        best = _best_by_agent(await clients.list_candidates(tournament, all_submissions=True))
        if agent_id:
            _show_ancestors(settings, await clients.get_lineage(tournament, agent_id), best)
        else:
            _show_families(settings, tournament, best)
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)


async def _find(clients: Clients, subject: str, settings: Settings) -> tuple[Tournament, str]:
    """The tournament that is meant, and the agent if one is."""
    tournaments = {tournament.tournament_id: tournament for tournament in await clients.list_tournaments()}
    agent = resolve.resolve_agent(subject, list(tournaments))
    if agent:
        return tournaments[agent[0]], agent[1]
    return tournaments[resolve.resolve_tournament(subject, list(tournaments), where=settings.where)], ""


async def _replay(settings: Settings, clients: Clients, tournament: Tournament) -> int:
    replayed = await clients.replay_tournament(tournament)
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
        taken = f"{agents} generated and {submissions} judged again"
        show(f"{tournament.tournament_id}: {taken}, {differences}")
        for difference in replayed.differences:
            show(f"  {difference}")
    return EXIT_FAILED if replayed.differences else 0


def _best_by_agent(submissions: Sequence[Candidate]) -> dict[str, Candidate]:
    """The best submission of each agent, agents by their first arrival: parents come before their children."""
    best: dict[str, Candidate] = {}
    for candidate in submissions:
        if candidate.agent_id not in best or candidate.score > best[candidate.agent_id].score:
            best[candidate.agent_id] = candidate
    return best


def _show_families(settings: Settings, tournament: Tournament, best: Mapping[str, Candidate]) -> None:
    if settings.as_json:
        show_json([shapes.candidate(candidate) | {"depth": candidate.depth} for candidate in best.values()])
        return
    root = Tree(Text(tournament.tournament_id, style="bold"), guide_style="dim")
    nodes: dict[str, Tree] = {}
    for agent_id, candidate in best.items():
        parent = nodes.get(candidate.parent_agent_ids[0], root) if candidate.parent_agent_ids else root
        nodes[agent_id] = parent.add(_candidate_line(candidate, champion=agent_id == tournament.best_agent_id))
    show(root)


def _candidate_line(candidate: Candidate, *, champion: bool) -> Text:
    line = Text(formats.short(candidate.agent_id, candidate.tournament_id), style="bold" if champion else "")
    line.append(f"  {candidate.algorithm}  ", style="dim")
    line.append(formats.score(candidate.score, candidate.standard_error))
    line.append(f"  {formats.count(candidate.environment_steps)} steps", style="dim")
    return line.append("  champion", style="bold green") if champion else line


def _show_ancestors(settings: Settings, agents: Sequence[Agent], best: Mapping[str, Candidate]) -> None:
    """The agent last, below its ancestors.

    Args:
        settings: Whether JSON is wanted.
        agents: The agent, then its ancestors, nearest first.
        best: The best submission of each agent that has one.
    """
    if settings.as_json:
        show_json([shapes.agent(agent) for agent in agents])
        return
    root = Tree("", guide_style="dim", hide_root=True)
    nodes: dict[str, Tree] = {}
    by_id = {agent.agent_id: agent for agent in agents}
    for agent in reversed(agents):
        parent_id = agent.parent_agent_ids[0] if agent.parent_agent_ids else ""
        text = _agent_text(agent, by_id.get(parent_id), best.get(agent.agent_id))
        nodes[agent.agent_id] = nodes.get(parent_id, root).add(text)
    show(root)


def _agent_text(agent: Agent, parent: Agent | None, best: Candidate | None) -> Text:
    text = Text(formats.short(agent.agent_id, agent.tournament_id), style="bold")
    text.append(f"  {Origin.Name(agent.origin).removeprefix('ORIGIN_').lower()}", style="dim")
    if best:
        text.append(f"  {formats.score(best.score, best.standard_error)}", style="not bold")
    text.append(f"  {agent.reason}", style="not bold dim")
    for name, (before, after) in changed(agent, parent).items() if parent else ():
        text.append(f"\n    {name} {before} → {after}", style="not bold cyan")
    return text


def changed(agent: Agent, parent: Agent) -> dict[str, tuple[Any, Any]]:
    """The hyperparameters that differ between a parent and its child, with both values."""
    before, after = (whole(json_format.MessageToDict(one.hyperparameters)) for one in (parent, agent))
    return {name: (before.get(name), after[name]) for name in after if before.get(name) != after[name]}
