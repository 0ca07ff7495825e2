"""Names the parts of a replay memory in a manifest, and selects those to keep if not all of them fit.

A selection has the newest pieces up to half of the bytes. The other half is drawn uniformly from the older pieces, in a
pseudo-random order that depends only on their names. A larger limit therefore selects every piece that a smaller one
does, except at the border between the halves, and the pieces of a growing memory are rarely exchanged for others.
"""

import hashlib
from collections.abc import Iterable, Sequence

from podrace.checkpoint.v1.checkpoint_pb2 import Part

PREFIX = "replay."
"""Begins the names of all parts of a replay memory."""
STATE = f"{PREFIX}state"
"""Part that every restored memory needs: which steps it had, and their priorities."""
PIECE = f"{PREFIX}segments."
"""Begins the names of the pieces; the number of the first segment follows."""
DIGITS = 15


def piece_name(first_segment: int) -> str:
    """Returns the name of a piece; names sort by age, the oldest first."""
    return f"{PIECE}{first_segment:0{DIGITS}d}"


def first_segment_of(name: str) -> int:
    """Returns the number in the name of a piece."""
    return int(name.removeprefix(PIECE))


def is_replay(part: Part) -> bool:
    """Whether a part belongs to a replay memory. Such parts are optional: an agent can start without them."""
    return part.name.startswith(PREFIX)


def select(parts: Iterable[Part], limit_bytes: int) -> list[Part]:
    """Selects parts of one replay memory, at most `limit_bytes` together.

    Args:
        parts: Parts of the memory, in any order. What is neither the state nor a piece, as in memories that podrace
            0.1.0 stored, is selected only with all the others.
        limit_bytes: Most bytes to select.

    Returns:
        The selected parts in order of their names; none if no piece fits together with the state.
    """
    ordered = sorted(parts, key=lambda part: part.name)
    if sum(part.size_bytes for part in ordered) <= limit_bytes:
        return ordered
    state = [part for part in ordered if part.name == STATE]
    pieces = [part for part in ordered if part.name.startswith(PIECE)]
    if len(state) + len(pieces) < len(ordered):
        return []
    room = limit_bytes - sum(part.size_bytes for part in state)
    newest = _first_fitting(pieces[::-1], room / 2)
    older = sorted(pieces[: len(pieces) - len(newest)], key=_draw)
    drawn = _fitting(older, room - sum(part.size_bytes for part in newest))
    return sorted([*newest, *drawn, *state], key=lambda part: part.name) if newest or drawn else []


def _first_fitting(pieces: Sequence[Part], room: float) -> list[Part]:
    found, total = [], 0
    for part in pieces:
        total += part.size_bytes
        if total > room:
            break
        found.append(part)
    return found


def _fitting(pieces: Sequence[Part], room: float) -> list[Part]:
    found = []
    for part in pieces:
        if part.size_bytes <= room:
            found.append(part)
            room -= part.size_bytes
    return found


def _draw(part: Part) -> bytes:
    return hashlib.sha256(part.name.encode()).digest()
