"""Decides which ended tournaments may be deleted, and which are due. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Deletable:
    """What decides whether a tournament may be deleted."""

    tournament_id: str
    end_time: float | None
    """When it ended, in seconds since 1970; None: it has not ended."""
    pods: int = 0
    """Its pods that have not exited."""
    evaluations: int = 0
    """Its evaluations that are not done."""
    children: Sequence[str] = ()
    """Tournaments that started from one of its agents."""


def refusal(found: Deletable) -> str:
    """Returns why a tournament may not be deleted now, with what to do; empty if it may."""
    name = found.tournament_id
    if found.end_time is None:
        return f"tournament {name} has not ended; stop it first (podrace stop {name})"
    if found.children:
        return f"tournament {found.children[0]} starts from an agent of {name}; delete that one first"
    if found.pods:
        return f"pods of {name} are still exiting ({found.pods}); try again in a few seconds"
    if found.evaluations:
        return f"evaluations of {name} are not done ({found.evaluations}); try again when they are"
    return ""


def expired(tournaments: Iterable[Deletable], now: float, keep_seconds: float) -> list[str]:
    """Returns the tournaments that are deleted because they ended long ago, in the given order.

    Args:
        tournaments: All of them.
        now: Seconds since 1970.
        keep_seconds: Time for which ended tournaments are kept; 0: without end.
    """
    if not keep_seconds:
        return []
    return [
        found.tournament_id
        for found in tournaments
        if found.end_time is not None and found.end_time + keep_seconds <= now and not refusal(found)
    ]
