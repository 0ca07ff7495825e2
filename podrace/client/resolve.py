"""Which tournament, agent or candidate a person means; decides only, calls nobody."""

import re
from collections.abc import Sequence

from podrace.config import unknown
from podrace.errors import InvalidArgument, NotFound

LATEST = "latest"
_NAMED_AT_MOST = 8


def resolve_tournament(text: str, tournament_ids: Sequence[str], *, where: str) -> str:
    """Finds the tournament that `text` names: its id, the beginning of just one id, or `latest`.

    Args:
        text: What the user typed.
        tournament_ids: All there are, newest first.
        where: What was searched, for the line.

    Raises:
        NotFound: None fits; the line names the nearest.
        InvalidArgument: Several fit.
    """
    if not tournament_ids:
        raise NotFound(f"{where}: there are no tournaments; begin one with `podrace train SPEC`")
    if text == LATEST:
        return tournament_ids[0]
    return _only(text, tournament_ids, "tournament", where)


def resolve_agent(text: str, tournament_ids: Sequence[str]) -> tuple[str, str] | None:
    """Finds the tournament and the agent that `text` names as `<tournament>-a<number>`.

    Args:
        text: What the user typed; the tournament may be abbreviated.
        tournament_ids: All there are, newest first.

    Returns:
        Tournament id and agent id; None if `text` has another shape or no tournament fits.
    """
    match = re.fullmatch(r"(.+)-a(\d+)", text)
    # A tournament's six last characters may look like an agent's number: its own name goes first.
    if match is None or any(name.startswith(text) for name in tournament_ids):
        return None
    try:
        tournament_id = resolve_tournament(match[1], tournament_ids, where="")
    except (NotFound, InvalidArgument):
        return None
    return tournament_id, f"{tournament_id}-a{match[2]}"


def looks_like_candidate(text: str) -> bool:
    """Whether `text` could be the beginning of a SHA-256, which is what candidates are named by."""
    return re.fullmatch(r"[0-9a-f]{4,64}", text) is not None


def resolve_candidate(text: str, candidate_ids: Sequence[str], *, where: str) -> str:
    """Finds the candidate that `text` names: its id or the beginning of just one.

    Raises:
        NotFound: None fits.
        InvalidArgument: Several fit.
    """
    return _only(text, candidate_ids, "candidate", where)


def _only(text: str, names: Sequence[str], what: str, where: str) -> str:
    fitting = [text] if text in names else [name for name in names if name.startswith(text)]
    if not fitting:
        raise NotFound(_not_found(text, names, what, where))
    if len(fitting) > 1:
        shown = ", ".join(fitting[:_NAMED_AT_MOST]) + (", ..." if len(fitting) > _NAMED_AT_MOST else "")
        raise InvalidArgument(f"{what} {text!r} fits {len(fitting)}: {shown}; write more of it")
    return fitting[0]


def _not_found(text: str, names: Sequence[str], what: str, where: str) -> str:
    """Names the nearest; of many that are not near, only the newest."""
    line = unknown(where, what, text, names)
    return line if "did you mean" in line else unknown(where, what, text, names[:_NAMED_AT_MOST])
