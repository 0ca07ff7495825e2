"""Builds the family tree of the agents of a tournament: ancestry, changed hyperparameters, positions in a drawing.

members = make_members(agents, submissions)
line = line_of(champion_id, members)                # from the first ancestor to the champion
positions = lay_out(members, line)                  # positions are unique, and lines do not cross

Pure.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from podrace.cli.terminal import formats
from podrace.client.enum_values import word_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, Origin
from podrace.specification.files import whole

Members = Mapping[str, "FamilyMember"]
"""Members by agent id, in order of creation: parents come before their children."""


@dataclass(frozen=True)
class FamilyMember:
    """An agent with its best submission."""

    agent_id: str
    name: str
    """Short name, for instance a12; the full id if the agent belongs to another tournament."""
    algorithm: str
    parent_id: str = ""
    """Parent; empty if the agent is fresh or the parent is not among the members."""
    origin: str = ""
    """fresh, clone or mutation; empty if it is not known."""
    reason: str = ""
    """Why the generator made the agent."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Empty if they are not known."""
    best: Candidate | None = None
    """Submission with the highest score; None if there is no submission."""
    start_steps: int = 0
    """Environment steps of the checkpoint from which it started."""
    core_seconds: float = 0.0
    """Compute in CPU-core seconds until its last submission."""


@dataclass(frozen=True)
class HyperparameterChange:
    """A new value of a hyperparameter along a line of descent."""

    environment_steps: int
    """Environment steps of the policy when the value changed."""
    value: Any


@dataclass(frozen=True)
class OutlineEntry:
    """An agent in an indented list."""

    agent_id: str
    below: str
    """The agent under which it is indented; empty if it is not indented."""
    continues_parent: bool
    """Whether it has the same indent as its parent, which is the previous agent at this indent."""


@dataclass(frozen=True)
class Position:
    """Position of an agent in a drawing."""

    column: int
    """Position in the order of creation."""
    row: int


# --- descent -----------------------------------------------------------------------------------------------------


def make_members(agents: Iterable[Agent], submissions: Iterable[Candidate]) -> dict[str, FamilyMember]:
    """Joins agents with their submissions; includes agents without submissions and submissions without an agent.

    Args:
        agents: Agents of one tournament in any order. Agents of other tournaments, from which it started, come before
            them and keep their full ids as names.
        submissions: Their submissions in order of arrival.
    """
    agents = list(agents)
    order = {name: place for place, name in enumerate(dict.fromkeys(agent.tournament_id for agent in agents))}
    home = next(reversed(order), "")
    by_agent: dict[str, list[Candidate]] = {}
    steps: dict[str, int] = {}
    for entry in submissions:
        by_agent.setdefault(entry.agent_id, []).append(entry)
        steps[entry.candidate_id] = entry.environment_steps
    born: dict[str, tuple[tuple[int, int], FamilyMember]] = {}
    for agent in agents:
        start = steps.get(agent.starting_checkpoint.manifest_digest, 0)
        member = _generated(agent, by_agent.get(agent.agent_id, []), start, home)
        born[agent.agent_id] = (order[agent.tournament_id], agent.number), member
    for agent_id, entries in by_agent.items():
        place = order.get(entries[0].tournament_id, len(order))
        born.setdefault(agent_id, ((place, entries[0].agent_number), _submitted(entries)))
    return _with_known_parents([member for _, member in sorted(born.values(), key=lambda entry: entry[0])])


def _generated(agent: Agent, entries: Sequence[Candidate], start_steps: int, home: str) -> FamilyMember:
    return FamilyMember(
        agent_id=agent.agent_id,
        name=formats.short(agent.agent_id, home),
        algorithm=agent.algorithm or next((entry.algorithm for entry in entries), ""),
        parent_id=agent.parent_agent_ids[0] if agent.parent_agent_ids else "",
        origin=word_of(Origin.DESCRIPTOR, agent.origin) if agent.origin else "",
        reason=agent.reason,
        hyperparameters=whole(json_format.MessageToDict(agent.hyperparameters)),
        best=max(entries, key=lambda entry: entry.score, default=None),
        start_steps=start_steps,
        core_seconds=max((entry.core_seconds for entry in entries), default=0.0),
    )


def _submitted(entries: Sequence[Candidate]) -> FamilyMember:
    first = entries[0]
    return FamilyMember(
        agent_id=first.agent_id,
        name=first.agent_id.removeprefix(f"{first.tournament_id}-"),
        algorithm=first.algorithm,
        parent_id=first.parent_agent_ids[0] if first.parent_agent_ids else "",
        best=max(entries, key=lambda entry: entry.score),
        start_steps=first.environment_steps - min(first.agent_environment_steps, first.environment_steps),
        core_seconds=max(entry.core_seconds for entry in entries),
    )


def _with_known_parents(members: Sequence[FamilyMember]) -> dict[str, FamilyMember]:
    """Removes parents that are not among the members or come after their children."""
    known: dict[str, FamilyMember] = {}
    for member in members:
        known[member.agent_id] = member if member.parent_id in known else _orphan(member)
    return known


def _orphan(member: FamilyMember) -> FamilyMember:
    return FamilyMember(**{**vars(member), "parent_id": ""})


def children_of(members: Members) -> dict[str, list[str]]:
    """Returns the ids of each agent's children in order of creation; the empty id has the agents without parent."""
    children: dict[str, list[str]] = {"": [], **{agent_id: [] for agent_id in members}}
    for agent_id, member in members.items():
        children[member.parent_id].append(agent_id)
    return children


def line_of(agent_id: str, members: Members) -> list[str]:
    """Returns the line of descent from the first ancestor to an agent; empty for an unknown agent."""
    line: list[str] = []
    while agent_id in members:
        line.append(agent_id)
        agent_id = members[agent_id].parent_id
    return line[::-1]


def relatives_of(agent_id: str, members: Members) -> dict[str, FamilyMember]:
    """Returns an agent with its ancestors and its descendants."""
    kept = set(line_of(agent_id, members))
    descendants = {agent_id}
    for other, member in members.items():
        if member.parent_id in descendants:
            descendants.add(other)
    return _with_known_parents([member for other, member in members.items() if other in kept | descendants])


DEEPEST_INDENT = 12
"""Largest number of generations for which every child is indented below its parent."""


def outline(members: Members, line: Collection[str]) -> list[OutlineEntry]:
    """Returns the agents as an indented list, in which every agent comes after its parent.

    In families with many generations, one child of each agent has the indent of its parent and comes after all
    descendants of its siblings: the child on `line`, or else the child with the most descendants.

    Args:
        members: Members in order of creation.
        line: Ids of agents that continue at the indent of their parent in any case.
    """
    children = children_of(members)
    sizes, _ = _measure(members, children)
    deep = max((len(line_of(name, members)) for name, below in children.items() if not below), default=0)
    entries: list[OutlineEntry] = []
    waiting = [OutlineEntry(name, "", False) for name in reversed(children[""])]
    while waiting:
        entry = waiting.pop()
        entries.append(entry)
        heirs = list(children[entry.agent_id])
        if heirs and deep > DEEPEST_INDENT:
            heir = _heirs_first(heirs, line, sizes)[0]
            heirs.remove(heir)
            waiting.append(OutlineEntry(heir, entry.below, True))
        waiting += [OutlineEntry(name, entry.agent_id, False) for name in reversed(heirs)]
    return entries


def _heirs_first(names: Iterable[str], line: Collection[str], sizes: Mapping[str, int]) -> list[str]:
    """Sorts siblings: first those on the line, then by number of descendants."""
    return sorted(names, key=lambda name: (name not in line, -sizes[name]))


# --- changed hyperparameters -------------------------------------------------------------------------------------


def changes(member: FamilyMember, parent: FamilyMember | None) -> dict[str, tuple[Any, Any]]:
    """Returns the hyperparameters that differ between a parent and its child, with both values."""
    before, after = (parent.hyperparameters if parent else {}), member.hyperparameters
    return {name: (before.get(name), after[name]) for name in after if before and before.get(name) != after[name]}


def compute(core_seconds: float) -> str:
    """Formats compute: 4.2 core-seconds, or 2:05 core time for a minute or more."""
    return f"{core_seconds:.1f} core-seconds" if core_seconds < 60 else f"{formats.duration(core_seconds)} core time"


def plain(value: object) -> str:
    """Formats the value of a hyperparameter: 0.00125, 64, relu, true."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def schedule(line: Sequence[FamilyMember]) -> dict[str, list[HyperparameterChange]]:
    """Returns the successive values of all hyperparameters that change along a line of descent.

    Args:
        line: Members from the first ancestor on.
    """
    found: dict[str, list[HyperparameterChange]] = {}
    for member in line:
        for name, value in member.hyperparameters.items():
            track = found.setdefault(name, [])
            if not track or track[-1].value != value:
                track.append(HyperparameterChange(member.start_steps, value))
    return {name: track for name, track in found.items() if len(track) > 1}


# --- positions ---------------------------------------------------------------------------------------------------


def lay_out(members: Members, line: Collection[str]) -> dict[str, Position]:
    """Returns a position for every agent. The column is the order of creation, and every family has its own rows.

    A parent is in the row of one of its children: the child on `line`, or else the child with the most descendants.
    The other children are below, each with its descendants in rows that no sibling uses. An edge that leads down from
    the parent and then right to the child therefore crosses no other edge. Two families share rows if one of them ends
    before the other begins.

    Args:
        members: Members in order of creation.
        line: Ids of agents whose line is drawn straight.
    """
    children = children_of(members)
    sizes, heights = _measure(members, children)
    columns = {agent_id: column for column, agent_id in enumerate(members)}
    last = _last_columns(members, columns)
    rows = _pack(children[""], heights, columns, last)
    for agent_id in members:
        row = rows[agent_id]
        for child in _heirs_first(children[agent_id], line, sizes):
            rows[child] = row
            row += heights[child]
    return {agent_id: Position(columns[agent_id], rows[agent_id]) for agent_id in members}


def _measure(members: Members, children: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the number of descendants of each agent, itself included, and the number of rows they need."""
    sizes: dict[str, int] = {}
    heights: dict[str, int] = {}
    # Children are born after their parents, so in reverse order they come first and no recursion is needed.
    for agent_id in reversed(list(members)):
        sizes[agent_id] = 1 + sum(sizes[child] for child in children[agent_id])
        heights[agent_id] = max(1, sum(heights[child] for child in children[agent_id]))
    return sizes, heights


def _last_columns(members: Members, columns: Mapping[str, int]) -> dict[str, int]:
    """Returns the column of the last-born descendant of each agent."""
    last = dict(columns)
    for agent_id in reversed(list(members)):
        parent_id = members[agent_id].parent_id
        if parent_id:
            last[parent_id] = max(last[parent_id], last[agent_id])
    return last


def _pack(
    roots: Sequence[str], heights: Mapping[str, int], columns: Mapping[str, int], last: Mapping[str, int]
) -> dict[str, int]:
    """Returns the first row of each family: the lowest one from which all its rows are free at its first column."""
    rows: dict[str, int] = {}
    ends: list[int] = []
    for root in roots:
        height, first = heights[root], columns[root]
        row = next(row for row in itertools.count() if all(end < first for end in ends[row : row + height]))
        ends += [-1] * (row + height - len(ends))
        ends[row : row + height] = [last[root]] * height
        rows[root] = row
    return rows
