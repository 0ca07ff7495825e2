"""Records the state of a continuous training in one JSON file, which is replaced atomically at every step.

journal = Journal.open(folder, name="stocks", reference="prices.npz")
journal.change(pending=pinned)
"""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from podrace import config
from podrace.cli.continuous.decisions import ValidationScore
from podrace.errors import DataLoss, FailedPrecondition, PodraceError

FOLDER = "continuous"
"""Folder in a home, with one folder per training."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Name of a training; shorter than that of a tournament, because tournament names add a suffix to it."""
FILE = "state.json"
FORMAT = 1

FIRST, REPLACED, KEPT, SKIPPED, FAILED = "first", "replaced", "kept", "skipped", "failed"
"""Verdicts on a version: its best agent became the first champion, replaced the champion, or did not replace it; or the
version was not trained on because a newer one arrived; or its tournament failed."""


@dataclass(frozen=True)
class EnsembleMember:
    """A further member of a champion that is an ensemble."""

    agent_id: str
    manifest_digest: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Empty if unknown."""


@dataclass(frozen=True)
class ScoredAgent:
    """The best agent of a tournament, or its ensemble, with its score."""

    agent_id: str
    tournament_id: str
    manifest_digest: str
    score: ValidationScore | None = None
    """Score on the validation slice; None if it has not been scored or scoring failed."""
    members: tuple[EnsembleMember, ...] = ()
    """The other members of an ensemble."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Empty if unknown."""


@dataclass(frozen=True)
class PinnedVersion:
    """A copied version of the data."""

    digest: str
    path: str
    arrive_time: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class VersionRun:
    """The training on one version."""

    number: int
    """Number of the version, from 1, without skipped versions."""
    version: PinnedVersion
    ancestor_agent_id: str = ""
    """The champion from which its tournament starts; empty for none."""
    tournament_id: str = ""
    """Empty until the tournament is created."""
    challenger: ScoredAgent | None = None
    """The best agent of the tournament; None until the tournament has ended."""


@dataclass(frozen=True)
class JournalEntry:
    """The verdict on a version and how it was reached."""

    digest: str
    arrive_time: float
    decide_time: float
    verdict: str
    reason: str
    number: int = 0
    """0 if it was skipped."""
    tournament_id: str = ""
    challenger: ScoredAgent | None = None
    incumbent: ScoredAgent | None = None
    difference: float | None = None
    standard_error: float | None = None


@dataclass(frozen=True)
class JournalState:
    """The recorded state of a continuous training."""

    name: str
    reference: str
    """The watched data."""
    watch_id: str
    """Random part of the names of tournaments, which distinguishes trainings with the same name."""
    spec: str = ""
    """Path of the specification, for display."""
    format: int = FORMAT
    champion: ScoredAgent | None = None
    champion_version: str = ""
    """Digest of the version on which the champion was scored."""
    pending: PinnedVersion | None = None
    """The newest version, which waits until the training on the current version is done."""
    work: VersionRun | None = None
    """The training on the current version."""
    trouble: str = ""
    """The current problem, in one line."""
    history: tuple[JournalEntry, ...] = ()
    """Oldest first."""


class Journal:
    """The recorded state and its file."""

    def __init__(self, folder: Path, state: JournalState) -> None:
        """Wraps a state that was read from the folder, or a new one. `change` writes it."""
        self._folder = folder
        self.state = state

    @classmethod
    def open(cls, folder: Path, *, name: str, reference: str) -> "Journal":
        """Opens the journal of a folder or starts a new one. The caller holds the lock of the folder.

        Raises:
            FailedPrecondition: The journal is about other data.
            DataLoss: The journal cannot be read.
        """
        state = read_journal(folder)
        if state is None:
            return cls(folder, JournalState(name, reference, secrets.token_hex(2)))
        if state.reference != reference:
            raise FailedPrecondition(
                f"continuous {name}: watches {state.reference}, not {reference}: choose another --name"
            )
        return cls(folder, state)

    def change(self, **changes: Any) -> None:
        """Changes fields of the state and writes it to the disk before returning.

        Raises:
            FailedPrecondition: The file cannot be written; the state is unchanged.
        """
        state = replace(self.state, **changes)
        if state == self.state:
            return
        text = json.dumps(_without_none(asdict(state)), indent=1)
        try:
            incoming = self._folder / f"{FILE}.incoming"
            with incoming.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            incoming.replace(self._folder / FILE)
        except OSError as error:
            raise FailedPrecondition(f"{self._folder / FILE} cannot be written: {error.strerror}") from None
        self.state = state


def read_journal(folder: Path) -> JournalState | None:
    """Returns the state recorded in a folder; None if there is none.

    Raises:
        DataLoss: The journal cannot be read.
    """
    path = folder / FILE
    try:
        state = config.build(JournalState, json.loads(path.read_text()), source=str(path))
        if state.format != FORMAT:
            raise ValueError(f"format = {state.format}: was written by another version of podrace")
        return state
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, PodraceError) as error:
        line = error.message if isinstance(error, PodraceError) else str(error)
        raise DataLoss(f"{path} cannot be read: {line}; move it away to start a new training") from None


def _without_none(value: Any) -> Any:
    """Removes keys whose value is None; a missing key is read as None."""
    if isinstance(value, Mapping):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def list_names(home: Path) -> list[str]:
    """Returns the names of all continuous trainings of a home."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in (home / FOLDER).iterdir() if (path / FILE).exists())
    return []
