"""Draws a family tree as a self-contained SVG file, without external fonts, styles or scripts. Pure.

Columns are in order of creation, colors show algorithms, sizes show scores, and the line of the champion is black and
thick. A browser shows the details of the agent under the mouse pointer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from podrace.cli.terminal import formats
from podrace.cli.terminal.palette import FAMILY_COLORS, OTHER_FAMILIES_COLOR
from podrace.cli.views.family import FamilyMember, Members, Position, changes, compute, plain
from podrace.printable import printable

_LINE_COLOR = "#111111"
_EDGE_COLOR = "#b8b8b8"
_TEXT_COLOR = "#333333"
_MARGIN = 24.0
_HEADER_HEIGHT = 66.0
_FOOTER_HEIGHT = 34.0
_WIDTH = 1200.0
"""Width of all columns together in pixels, within the limits for each column."""
_SMALLEST_COLUMN, _LARGEST_COLUMN = 9.0, 64.0
_ROW_HEIGHT = 22.0
_SMALLEST_RADIUS, _LARGEST_RADIUS = 2.5, 7.0
_LETTER_WIDTH = 5.4
"""Upper bound of the average letter width of the small font, in pixels."""
_TICKS = 12


@dataclass(frozen=True)
class _Canvas:
    """Converts positions and scores to pixels."""

    places: Mapping[str, Position]
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

    def radius(self, member: FamilyMember) -> float:
        """Returns a radius that grows with the score; neighbors in a row do not overlap."""
        largest = min(_LARGEST_RADIUS, max(self.column_width / 2, _SMALLEST_RADIUS))
        if member.best is None:
            return _SMALLEST_RADIUS
        share = (member.best.score - self.low) / (self.high - self.low) if self.high > self.low else 1.0
        return _SMALLEST_RADIUS + share * (largest - _SMALLEST_RADIUS)


def draw(members: Members, places: Mapping[str, Position], line: Sequence[str], *, title: str) -> str:
    """Returns the text of the SVG file.

    Args:
        members: Members in order of creation; at least one.
        places: Position of every member.
        line: Ids of the champion's line of descent, the champion last; empty without a champion.
        title: Title of the drawing.
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
        f"<title>{escape(printable(title))}</title>",
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
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{more}>{escape(printable(text))}</text>'


def _header(members: Members, line: Sequence[str], colors: Mapping[str, str], title: str) -> list[str]:
    heading = f"{title}: {formats.things(len(members), 'agent')} in order of creation, larger is better"
    champion = members[line[-1]] if line else None
    if champion and champion.best:
        score = formats.score(champion.best.score, champion.best.standard_error)
        heading += f"; champion {champion.name}: {score}, its line in black"
    parts = [_text(_MARGIN, 22, heading, size=13)]
    x = _MARGIN
    for name, color in colors.items():
        parts.append(f'<circle cx="{x + 5:.1f}" cy="42" r="5" fill="{color}"/>')
        parts.append(_text(x + 14, 46, name or "unknown", size=11))
        x += 34 + 6.5 * len(name or "unknown")
    return parts


def _ticks(members: Members, canvas: _Canvas) -> list[str]:
    """Returns the names of a few agents below their columns."""
    ids = list(members)
    step = max(1, -(-len(ids) // _TICKS))
    y = canvas.height - 12
    middle = ' text-anchor="middle"'
    return [_text(canvas.position(name)[0], y, members[name].name, size=10, more=middle) for name in ids[::step]]


def _edges(members: Members, canvas: _Canvas, line: Sequence[str]) -> list[str]:
    """Returns the edges: down from the parent, then right to the child. The champion's line is drawn last, on top."""
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
        # An agent without a score is drawn as a hollow circle.
        fill = color if member.best else "white"
        edge = f'stroke="{_LINE_COLOR}" stroke-width="2"' if agent_id in kin else f'stroke="{color}" stroke-width="1"'
        details = escape(describe(member, members.get(member.parent_id)))
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{canvas.radius(member):.1f}" fill="{fill}" {edge}>'
        parts.append(f"{circle}<title>{details}</title></circle>")
    return parts


def describe(member: FamilyMember, parent: FamilyMember | None) -> str:
    """Returns the details of an agent in a few lines, without control characters in them."""
    best = member.best
    lines = [f"{member.name}  {member.algorithm}  {member.origin}".rstrip()]
    if best:
        steps = f"{formats.count(best.environment_steps)} steps"
        lines.append(f"{formats.score(best.score, best.standard_error)} after {steps}")
        lines.append(compute(member.core_seconds))
    else:
        lines.append("no score")
    lines += [f"{name} {plain(old)} → {plain(new)}" for name, (old, new) in changes(member, parent).items()]
    return "\n".join(printable(line) for line in ([*lines, member.reason] if member.reason else lines))


def _labels(members: Members, canvas: _Canvas, line: Sequence[str]) -> list[str]:
    """Returns names and scores above agents if there is room: first on the champion's line, then the best agents."""
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
