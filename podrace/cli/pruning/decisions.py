"""Decides which tournaments and which files of a home are deleted. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from podrace.cli.results.origin import OWN_MESH
from podrace.cli.terminal import formats
from podrace.client.calls.tournaments import END_STATES
from podrace.tournament.v1.tournament_pb2 import Tournament

_POD_LOG = re.compile(r"(?P<tournament>.+)-p\d+\.log(?:\.\d+)?")


@dataclass(frozen=True)
class Criteria:
    """Which ended tournaments to delete; all criteria must hold."""

    older_than_seconds: float | None = None
    """Time since their end; None: any."""
    states: Collection[str] = ()
    """States, for instance FAILED; empty: any state in which a tournament has ended."""
    keep: int = 0
    """How many of the newest tournaments that meet the other criteria are kept."""


@dataclass(frozen=True)
class PruningDecision:
    """What happens to one tournament."""

    tournament: Tournament
    delete: bool
    reason: str


def judge(tournaments: Sequence[Tournament], criteria: Criteria, *, now: float) -> list[PruningDecision]:
    """Decides about every tournament, newest first. One that has not ended is never deleted.

    Args:
        tournaments: All tournaments.
        criteria: Which to delete.
        now: Current time in seconds since the epoch.
    """
    verdicts: list[PruningDecision] = []
    kept = 0
    for tournament in sorted(tournaments, key=lambda each: each.create_time.ToNanoseconds(), reverse=True):
        reason = _spared(tournament, criteria, now)
        if not reason and kept < criteria.keep:
            kept += 1
            reason = f"one of the newest {criteria.keep}"
        verdicts.append(
            PruningDecision(tournament, not reason, reason or f"ended {formats.duration(_age(tournament, now))} ago")
        )
    return verdicts


def _spared(tournament: Tournament, criteria: Criteria, now: float) -> str:
    """Returns why a tournament is not deleted; empty if every criterion holds."""
    state = formats.state(tournament)
    if tournament.state not in END_STATES:
        return f"has not ended ({state})"
    if criteria.states and state not in criteria.states:
        return f"is {state}"
    age = _age(tournament, now)
    if criteria.older_than_seconds is not None and age < criteria.older_than_seconds:
        return f"ended only {_ago(age)}"
    return ""


def _ago(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:.0f} days ago" if days >= 2 else f"{formats.duration(seconds)} ago"


def _age(tournament: Tournament, now: float) -> float:
    """Returns the seconds since the end of a tournament; since its creation if its end was not recorded."""
    time = tournament.end_time if tournament.HasField("end_time") else tournament.create_time
    return now - time.ToNanoseconds() / 1e9


@dataclass(frozen=True)
class ResultsDecision:
    """What happens to folders of results that belong to no tournament of the home."""

    delete: Sequence[str]
    """Results of the home's own mesh."""
    unrecorded: Sequence[str]
    """Folders that are kept because it is not known which mesh they are from."""


def leftover_results(origins: Mapping[str, str | None], known: Collection[str]) -> ResultsDecision:
    """Decides about the folders of results whose tournaments the home's own mesh does not have.

    Results of another mesh are kept: their tournaments may exist there.

    Args:
        origins: The mesh of each folder, as `read_origin` returns it. The folders were listed before the tournaments:
            a tournament that is created meanwhile is safe.
        known: Ids of the tournaments that are not deleted.
    """
    others = {name: origin for name, origin in sorted(origins.items()) if name not in known}
    return ResultsDecision(
        [name for name, origin in others.items() if origin == OWN_MESH],
        [name for name, origin in others.items() if origin is None],
    )


def leftover_logs(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns the logs of pods whose tournaments do not exist, rotated ones included; none of a service.

    Args:
        names: Files in the folder of logs, listed before the tournaments were.
        known: Ids of the tournaments that are not deleted.
    """
    pods = ((name, _POD_LOG.fullmatch(name)) for name in names)
    return sorted(name for name, match in pods if match and match["tournament"] not in known)
