"""Resolves abbreviated ids of tournaments, agents and candidates. Pure."""

import re
from collections.abc import Sequence

from podrace.config import unknown
from podrace.errors import InvalidArgument, NotFound

LATEST = "latest"
_NAMED_AT_MOST = 8


def resolve_tournament(text: str, tournament_ids: Sequence[str], *, where: str) -> str:
    """Returns the id of the tournament that `text` names: an id, a prefix of exactly one id, or `latest`.

    Args:
        text: Text that the user typed.
        tournament_ids: All tournament ids, newest first.
        where: Name of the home or orchestrator, for error messages.

    Raises:
        NotFound: No id matches; the message suggests a similar one.
        InvalidArgument: Several ids match, or `text` is empty.
    """
    if not tournament_ids:
        raise NotFound(f"{where}: there are no tournaments; start one with `podrace train SPEC`")
    if text == LATEST:
        return tournament_ids[0]
    return _only(text, tournament_ids, "tournament", where)


def resolve_agent(text: str, tournament_ids: Sequence[str]) -> tuple[str, str] | None:
    """Returns the tournament and the agent that `text` names as `<tournament>-a<number>`.

    Args:
        text: Text that the user typed; the tournament may be abbreviated.
        tournament_ids: All tournament ids, newest first.

    Returns:
        Tournament id and agent id; None if `text` is not of this form or no tournament matches.
    """
    match = re.fullmatch(r"(.+)-a(\d+)", text)
    # The end of a tournament id may look like an agent number, so tournament ids have priority.
    if match is None or any(name.startswith(text) for name in tournament_ids):
        return None
    try:
        tournament_id = resolve_tournament(match[1], tournament_ids, where="")
    except (NotFound, InvalidArgument):
        return None
    return tournament_id, f"{tournament_id}-a{match[2]}"


def looks_like_candidate(text: str) -> bool:
    """Returns whether `text` may be a prefix of a SHA-256 digest, which is the id of a candidate."""
    return re.fullmatch(r"[0-9a-f]{4,64}", text) is not None


def resolve_candidate(text: str, candidate_ids: Sequence[str], *, where: str) -> str:
    """Returns the id of the candidate that `text` names: an id or a prefix of exactly one.

    Raises:
        NotFound: No id matches.
        InvalidArgument: Several ids match, or `text` is empty.
    """
    return _only(text, candidate_ids, "candidate", where)


def resolve_name(text: str, names: Sequence[str], what: str, *, where: str) -> str:
    """Returns the name that `text` is, or a prefix of exactly one name.

    Args:
        text: Text that the user typed.
        names: All names; the first ones are listed if none is similar.
        what: What they name, for error messages.
        where: Where they are, for error messages.

    Raises:
        NotFound: No name matches; the message suggests a similar one.
        InvalidArgument: Several names match, or `text` is empty.
    """
    return _only(text, names, what, where)


def _only(text: str, names: Sequence[str], what: str, where: str) -> str:
    if not text:
        # The empty text is a prefix of every name, and would select the only one.
        raise InvalidArgument(f"{what}: empty; name its id or a prefix of it")
    fitting = [text] if text in names else [name for name in names if name.startswith(text)]
    if not fitting:
        raise NotFound(_not_found(text, names, what, where))
    if len(fitting) > 1:
        shown = ", ".join(fitting[:_NAMED_AT_MOST]) + (", ..." if len(fitting) > _NAMED_AT_MOST else "")
        raise InvalidArgument(f"{what} {text!r} is ambiguous, it matches {len(fitting)}: {shown}; use a longer prefix")
    return fitting[0]


def _not_found(text: str, names: Sequence[str], what: str, where: str) -> str:
    """Suggests a similar name; without one, lists only the newest names."""
    line = unknown(where, what, text, names)
    return line if "did you mean" in line else unknown(where, what, text, names[:_NAMED_AT_MOST])
