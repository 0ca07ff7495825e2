"""The agents of a tournament as a family: who descends from whom, what changed, and where each is drawn (PURE).

members = make_members(agents, submissions)
line = line_of(champion_id, members)                # from the first ancestor to the champion
places = lay_out(members, line)                     # no two at one place, no line across another
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

Members = Mapping[str, "Member"]
"""By agent id, by birth: parents come before their children."""


@dataclass(frozen=True)
class Member:
    """An agent and the best it did."""

    agent_id: str
    name: str
    """Within its tournament: a12; the whole id of one of another tournament."""
    algorithm: str
    parent_id: str = ""
    """Empty when it is fresh, or its parent is not among those that are told of."""
    origin: str = ""
    """fresh, clone or mutation; empty if it is not known."""
    reason: str = ""
    """Why the generator made it."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Empty if they are not known."""
    best: Candidate | None = None
    """Its submission with the highest score; None before the first."""
    start_steps: int = 0
    """Environment steps behind the files it started from."""
    core_seconds: float = 0.0
    """Processor-core seconds it was given, as far as it submitted."""


@dataclass(frozen=True)
class Change:
    """A hyperparameter at one point of a line."""

    environment_steps: int
    """Behind the policy when the value came."""
    value: Any


@dataclass(frozen=True)
class Entry:
    """An agent in an indented list."""

    agent_id: str
    below: str
    """The agent under which it is indented; empty at the margin."""
    goes_on: bool
    """It is not indented although it has a parent: that is the agent before it at the same indent."""


@dataclass(frozen=True)
class Place:
    """Where an agent is drawn."""

    column: int
    """Its position in the order of birth."""
    row: int


# --- who descends from whom --------------------------------------------------------------------------------------


def make_members(agents: Iterable[Agent], submissions: Iterable[Candidate]) -> dict[str, Member]:
    """Joins what the generator and the updater know; an agent that only one of them knows is there as well.

    Args:
        agents: Of one tournament, in any order; those of others, from which it started, before them, and named by their
            whole ids.
        submissions: Theirs, by arrival.
    """
    agents = list(agents)
    order = {name: place for place, name in enumerate(dict.fromkeys(agent.tournament_id for agent in agents))}
    home = next(reversed(order), "")
    by_agent: dict[str, list[Candidate]] = {}
    steps: dict[str, int] = {}
    for entry in submissions:
        by_agent.setdefault(entry.agent_id, []).append(entry)
        steps[entry.candidate_id] = entry.environment_steps
    born: dict[str, tuple[tuple[int, int], Member]] = {}
    for agent in agents:
        start = steps.get(agent.starting_checkpoint.manifest_digest, 0)
        member = _generated(agent, by_agent.get(agent.agent_id, []), start, home)
        born[agent.agent_id] = (order[agent.tournament_id], agent.number), member
    for agent_id, entries in by_agent.items():
        place = order.get(entries[0].tournament_id, len(order))
        born.setdefault(agent_id, ((place, entries[0].agent_number), _submitted(entries)))
    return _without_strangers([member for _, member in sorted(born.values(), key=lambda entry: entry[0])])


def _generated(agent: Agent, entries: Sequence[Candidate], start_steps: int, home: str) -> Member:
    return Member(
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


def _submitted(entries: Sequence[Candidate]) -> Member:
    first = entries[0]
    return Member(
        agent_id=first.agent_id,
        name=first.agent_id.removeprefix(f"{first.tournament_id}-"),
        algorithm=first.algorithm,
        parent_id=first.parent_agent_ids[0] if first.parent_agent_ids else "",
        best=max(entries, key=lambda entry: entry.score),
        start_steps=first.environment_steps - min(first.agent_environment_steps, first.environment_steps),
        core_seconds=max(entry.core_seconds for entry in entries),
    )


def _without_strangers(members: Sequence[Member]) -> dict[str, Member]:
    """Makes those fresh whose parent is not here, or comes after them."""
    known: dict[str, Member] = {}
    for member in members:
        known[member.agent_id] = member if member.parent_id in known else _orphan(member)
    return known


def _orphan(member: Member) -> Member:
    return Member(**{**vars(member), "parent_id": ""})


def children_of(members: Members) -> dict[str, list[str]]:
    """Ids of the children of every agent, by birth; of the empty id: those without a parent."""
    children: dict[str, list[str]] = {"": [], **{agent_id: [] for agent_id in members}}
    for agent_id, member in members.items():
        children[member.parent_id].append(agent_id)
    return children


def line_of(agent_id: str, members: Members) -> list[str]:
    """An agent's line from its first ancestor to itself; empty for an unknown agent."""
    line: list[str] = []
    while agent_id in members:
        line.append(agent_id)
        agent_id = members[agent_id].parent_id
    return line[::-1]


def relatives_of(agent_id: str, members: Members) -> dict[str, Member]:
    """An agent with its ancestors and its descendants."""
    kept = set(line_of(agent_id, members))
    descendants = {agent_id}
    for other, member in members.items():
        if member.parent_id in descendants:
            descendants.add(other)
    return _without_strangers([member for other, member in members.items() if other in kept | descendants])


DEEPEST_INDENT = 12
"""Generations up to which each is indented below the one before."""


def outline(members: Members, line: Collection[str]) -> list[Entry]:
    """The order of an indented list, in which every agent comes after its parent and before the next of its family.

    Where lines are long, as those of populations are, one child of each agent goes on at the indent of its parent,
    after all who descend from its siblings: the one on `line`, or else the one with most descendants.

    Args:
        members: By birth.
        line: Ids of agents that are to go on in any case.
    """
    children = children_of(members)
    sizes, _ = _measure(members, children)
    deep = max((len(line_of(name, members)) for name, below in children.items() if not below), default=0)
    entries: list[Entry] = []
    waiting = [Entry(name, "", False) for name in reversed(children[""])]
    while waiting:
        entry = waiting.pop()
        entries.append(entry)
        heirs = list(children[entry.agent_id])
        if heirs and deep > DEEPEST_INDENT:
            heir = _heirs_first(heirs, line, sizes)[0]
            heirs.remove(heir)
            waiting.append(Entry(heir, entry.below, True))
        waiting += [Entry(name, entry.agent_id, False) for name in reversed(heirs)]
    return entries


def _heirs_first(names: Iterable[str], line: Collection[str], sizes: Mapping[str, int]) -> list[str]:
    """Siblings: first who is on the line, then by their descendants."""
    return sorted(names, key=lambda name: (name not in line, -sizes[name]))


# --- what changed ------------------------------------------------------------------------------------------------


def changes(member: Member, parent: Member | None) -> dict[str, tuple[Any, Any]]:
    """The hyperparameters that differ between a parent and its child, with both values."""
    before, after = (parent.hyperparameters if parent else {}), member.hyperparameters
    return {name: (before.get(name), after[name]) for name in after if before and before.get(name) != after[name]}


def compute(core_seconds: float) -> str:
    """Compute spent, for a person: 4.2 s of a core, 2:05 of a core."""
    return f"{core_seconds:.1f} s of a core" if core_seconds < 60 else f"{formats.duration(core_seconds)} of a core"


def plain(value: object) -> str:
    """A hyperparameter's value for a person: 0.00125, 64, relu."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def schedule(line: Sequence[Member]) -> dict[str, list[Change]]:
    """How the hyperparameters went along a line, of those that did not stay as they were.

    Args:
        line: From the first ancestor on.
    """
    found: dict[str, list[Change]] = {}
    for member in line:
        for name, value in member.hyperparameters.items():
            track = found.setdefault(name, [])
            if not track or track[-1].value != value:
                track.append(Change(member.start_steps, value))
    return {name: track for name, track in found.items() if len(track) > 1}


# --- where each is drawn -----------------------------------------------------------------------------------------


def lay_out(members: Members, line: Collection[str]) -> dict[str, Place]:
    """Gives every agent a place: its column is its order of birth, and a family has rows of its own.

    A parent stands in the row of one of its children, the one on `line` or else the one with most descendants; the
    others are below, each with its descendants in rows that no sibling uses. A line that leaves the parent downwards
    and then turns to the child therefore meets no other. Families share rows if one has died out before the other
    begins.

    Args:
        members: By birth.
        line: Ids of agents whose line is to be straight.
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
    return {agent_id: Place(columns[agent_id], rows[agent_id]) for agent_id in members}


def _measure(members: Members, children: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], dict[str, int]]:
    """How many agents descend from each, itself included, and how many rows they need."""
    sizes: dict[str, int] = {}
    heights: dict[str, int] = {}
    # Children are born after their parents: seen from the end they come first, without any recursion.
    for agent_id in reversed(list(members)):
        sizes[agent_id] = 1 + sum(sizes[child] for child in children[agent_id])
        heights[agent_id] = max(1, sum(heights[child] for child in children[agent_id]))
    return sizes, heights


def _last_columns(members: Members, columns: Mapping[str, int]) -> dict[str, int]:
    """The column of the youngest descendant of each agent."""
    last = dict(columns)
    for agent_id in reversed(list(members)):
        parent_id = members[agent_id].parent_id
        if parent_id:
            last[parent_id] = max(last[parent_id], last[agent_id])
    return last


def _pack(
    roots: Sequence[str], heights: Mapping[str, int], columns: Mapping[str, int], last: Mapping[str, int]
) -> dict[str, int]:
    """The first row of each family: the lowest number at which all of its rows are free from its first column on."""
    rows: dict[str, int] = {}
    ends: list[int] = []
    for root in roots:
        height, first = heights[root], columns[root]
        row = next(row for row in itertools.count() if all(end < first for end in ends[row : row + height]))
        ends += [-1] * (row + height - len(ends))
        ends[row : row + height] = [last[root]] * height
        rows[root] = row
    return rows
