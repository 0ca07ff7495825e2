"""Writes a family as an SVG file of its own: no fonts, styles or scripts from elsewhere (PURE).

Columns are the order of birth, colours the algorithms, sizes the scores; the champion's line is black and thick.
Whoever points at an agent in a browser is told all about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from podrace.cli.terminal import formats
from podrace.cli.terminal.palette import FAMILY_COLORS, OTHER_FAMILIES_COLOR
from podrace.cli.views.family import Member, Members, Place, changes, compute, plain

_LINE_COLOR = "#111111"
_EDGE_COLOR = "#b8b8b8"
_TEXT_COLOR = "#333333"
_MARGIN = 24.0
_HEADER_HEIGHT = 66.0
_FOOTER_HEIGHT = 34.0
_WIDTH = 1200.0
"""Of the columns together, as far as that leaves each of them as much as it needs and not more."""
_SMALLEST_COLUMN, _LARGEST_COLUMN = 9.0, 64.0
_ROW_HEIGHT = 22.0
_SMALLEST_RADIUS, _LARGEST_RADIUS = 2.5, 7.0
_LETTER_WIDTH = 5.4
"""Of the small font, at most on the average."""
_TICKS = 12


@dataclass(frozen=True)
class _Canvas:
    """Where places and sizes come to lie, in pixels."""

    places: Mapping[str, Place]
    column_width: float
    low: float
    high: float

    @property
    def width(self) -> float:
        columns = 1 + max(place.column for place in self.places.values())
        return max(2 * _MARGIN + columns * self.column_width, 480.0)

    @property
    def height(self) -> float:
        rows = 1 + max(place.row for place in self.places.values())
        return _HEADER_HEIGHT + rows * _ROW_HEIGHT + _FOOTER_HEIGHT

    def position(self, agent_id: str) -> tuple[float, float]:
        place = self.places[agent_id]
        return _MARGIN + (place.column + 0.5) * self.column_width, _HEADER_HEIGHT + (place.row + 0.5) * _ROW_HEIGHT

    def radius(self, member: Member) -> float:
        """Grows with the score; neighbours in a row touch at most."""
        largest = min(_LARGEST_RADIUS, max(self.column_width / 2, _SMALLEST_RADIUS))
        if member.best is None:
            return _SMALLEST_RADIUS
        share = (member.best.score - self.low) / (self.high - self.low) if self.high > self.low else 1.0
        return _SMALLEST_RADIUS + share * (largest - _SMALLEST_RADIUS)


def draw(members: Members, places: Mapping[str, Place], line: Sequence[str], *, title: str) -> str:
    """The text of an SVG file.

    Args:
        members: By birth; at least one.
        places: Of every member.
        line: Ids of the champion's line, the champion last; empty without one.
        title: Over the picture.
    """
    scores = [member.best.score for member in members.values() if member.best]
    width = min(max(_WIDTH / len(members), _SMALLEST_COLUMN), _LARGEST_COLUMN)
    canvas = _Canvas(places, width, min(scores, default=0.0), max(scores, default=0.0))
    names = sorted({member.algorithm for member in members.values()})
    colors = {
        name: FAMILY_COLORS[number] if number < len(FAMILY_COLORS) else OTHER_FAMILIES_COLOR
        for number, name in enumerate(names)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{canvas.width:.0f}" height="{canvas.height:.0f}"'
        f' viewBox="0 0 {canvas.width:.0f} {canvas.height:.0f}" font-family="sans-serif" fill="{_TEXT_COLOR}">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        *_header(members, line, colors, title),
        *_ticks(members, canvas),
        *_edges(members, canvas, line),
        *_nodes(members, canvas, line, colors),
        *_labels(members, canvas, line),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{more}>{escape(text)}</text>'


def _header(members: Members, line: Sequence[str], colors: Mapping[str, str], title: str) -> list[str]:
    said = f"{title}: {formats.things(len(members), 'agent')} by birth, larger is better"
    champion = members[line[-1]] if line else None
    if champion and champion.best:
        score = formats.score(champion.best.score, champion.best.standard_error)
        said += f"; champion {champion.name}: {score}, its line in black"
    parts = [_text(_MARGIN, 22, said, size=13)]
    x = _MARGIN
    for name, color in colors.items():
        parts.append(f'<circle cx="{x + 5:.1f}" cy="42" r="5" fill="{color}"/>')
        parts.append(_text(x + 14, 46, name or "unknown", size=11))
        x += 34 + 6.5 * len(name or "unknown")
    return parts


def _ticks(members: Members, canvas: _Canvas) -> list[str]:
    """Names of a few agents below, each under its column."""
    ids = list(members)
    step = max(1, -(-len(ids) // _TICKS))
    y = canvas.height - 12
    middle = ' text-anchor="middle"'
    return [_text(canvas.position(name)[0], y, members[name].name, size=10, more=middle) for name in ids[::step]]


def _edges(members: Members, canvas: _Canvas, line: Sequence[str]) -> list[str]:
    """Lines to parents: down from the parent, then along to the child; those of the champion on top."""
    kin = set(line)
    thin, thick = [], []
    for agent_id, member in members.items():
        if not member.parent_id:
            continue
        (x, y), (child_x, child_y) = canvas.position(member.parent_id), canvas.position(agent_id)
        path = f'<path d="M{x:.1f} {y:.1f}V{child_y:.1f}H{child_x:.1f}" fill="none" stroke='
        if agent_id in kin:
            thick.append(f'{path}"{_LINE_COLOR}" stroke-width="3"/>')
        else:
            thin.append(f'{path}"{_EDGE_COLOR}" stroke-width="1"/>')
    return thin + thick


def _nodes(members: Members, canvas: _Canvas, line: Sequence[str], colors: Mapping[str, str]) -> list[str]:
    kin = set(line)
    parts = []
    for agent_id, member in members.items():
        x, y = canvas.position(agent_id)
        color = colors[member.algorithm]
        # An agent without a score is hollow.
        fill = color if member.best else "white"
        edge = f'stroke="{_LINE_COLOR}" stroke-width="2"' if agent_id in kin else f'stroke="{color}" stroke-width="1"'
        told = escape(describe(member, members.get(member.parent_id)))
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{canvas.radius(member):.1f}" fill="{fill}" {edge}>'
        parts.append(f"{circle}<title>{told}</title></circle>")
    return parts


def describe(member: Member, parent: Member | None) -> str:
    """All about an agent, in a few lines."""
    best = member.best
    lines = [f"{member.name}  {member.algorithm}  {member.origin}".rstrip()]
    if best:
        steps = f"{formats.count(best.environment_steps)} steps"
        lines.append(f"{formats.score(best.score, best.standard_error)} after {steps}")
        lines.append(compute(member.core_seconds))
    else:
        lines.append("no score")
    lines += [f"{name} {plain(old)} → {plain(new)}" for name, (old, new) in changes(member, parent).items()]
    return "\n".join([*lines, member.reason] if member.reason else lines)


def _labels(members: Members, canvas: _Canvas, line: Sequence[str]) -> list[str]:
    """Name and score beside an agent, wherever there is room: first along the champion's line, then the best."""
    kin = set(line)

    def urgency(agent_id: str) -> tuple[bool, bool, float]:
        best = members[agent_id].best
        return agent_id not in line[-1:], agent_id not in kin, -best.score if best else float("inf")

    taken: dict[int, list[tuple[float, float]]] = {}
    parts = []
    for agent_id in sorted(members, key=urgency):
        member = members[agent_id]
        text = member.name + (f" {formats.number(member.best.score)}" if member.best else "")
        x, y = canvas.position(agent_id)
        half = _LETTER_WIDTH * len(text) / 2
        in_row = taken.setdefault(canvas.places[agent_id].row, [])
        if any(x - half < end and begin < x + half for begin, end in in_row):
            continue
        in_row.append((x - half, x + half))
        weight = ' text-anchor="middle"' + (' font-weight="bold"' if agent_id in line[-1:] else "")
        parts.append(_text(x, y - canvas.radius(member) - 2, text, size=9, more=weight))
    return parts
