"""What continuous training remembers: one JSON file, replaced as a whole at every step, so that a kill loses nothing.

diary = Diary.open(folder, name="stocks", reference="prices.npz")
diary.change(pending=pinned)
"""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from podrace import config
from podrace.cli.continuous.decisions import Score
from podrace.errors import DataLoss, FailedPrecondition, PodraceError

FOLDER = "continuous"
"""Of a home, with a folder for each name."""
FILE = "state.json"
FORMAT = 1

FIRST, REPLACED, KEPT, SKIPPED, FAILED = "first", "replaced", "kept", "skipped", "failed"
"""Verdicts on a version: its best is the first champion, replaced the champion, did not; it was never trained on, for a
newer one was there; or no champion came of its tournament."""


@dataclass(frozen=True)
class Contestant:
    """A scored agent."""

    agent_id: str
    tournament_id: str
    manifest_digest: str
    score: Score | None = None
    """On the validation slice; None until then, or if it could not be scored."""


@dataclass(frozen=True)
class Pinned:
    """A version of the data that was copied."""

    digest: str
    path: str
    arrive_time: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class Work:
    """The version that is trained on."""

    number: int
    """Of the version, from 1, those left out that were skipped."""
    version: Pinned
    ancestor_agent_id: str = ""
    """The champion that its tournament starts from; empty for none."""
    tournament_id: str = ""
    """Empty until it was created."""
    challenger: Contestant | None = None
    """The best of the tournament; None until that is over."""


@dataclass(frozen=True)
class Entry:
    """What came of a version."""

    digest: str
    arrive_time: float
    decide_time: float
    verdict: str
    reason: str
    number: int = 0
    """0 if it was skipped."""
    tournament_id: str = ""
    challenger: Contestant | None = None
    incumbent: Contestant | None = None
    difference: float | None = None
    standard_error: float | None = None


@dataclass(frozen=True)
class Memory:
    """All that is remembered."""

    name: str
    reference: str
    """What is watched."""
    watch_id: str
    """Tells this history from any other of the same name, in the names of tournaments."""
    spec: str = ""
    """The specification's file, for a person."""
    format: int = FORMAT
    champion: Contestant | None = None
    champion_version: str = ""
    """Digest of the version that its score is of."""
    pending: Pinned | None = None
    """The newest version, which waits for the work to be done."""
    work: Work | None = None
    trouble: str = ""
    """What goes wrong at the moment, in a line."""
    history: tuple[Entry, ...] = ()
    """Oldest first."""


class Diary:
    """What is remembered, and its file."""

    def __init__(self, folder: Path, memory: Memory) -> None:
        """Writes nothing yet."""
        self._folder = folder
        self.memory = memory

    @classmethod
    def open(cls, folder: Path, *, name: str, reference: str) -> "Diary":
        """Goes on with a diary, or begins one. The caller holds the lock of the folder.

        Raises:
            FailedPrecondition: It is the diary of other data.
            DataLoss: It cannot be read.
        """
        memory = read(folder)
        if memory is None:
            return cls(folder, Memory(name, reference, secrets.token_hex(2)))
        if memory.reference != reference:
            raise FailedPrecondition(
                f"continuous {name}: watches {memory.reference}, not {reference}: choose another --name"
            )
        return cls(folder, memory)

    def change(self, **changes: Any) -> None:
        """Remembers something; it is on the disk when this returns.

        Raises:
            FailedPrecondition: It cannot be written.
        """
        memory = replace(self.memory, **changes)
        if memory == self.memory:
            return
        text = json.dumps(_without_nothing(asdict(memory)), indent=1)
        try:
            incoming = self._folder / f"{FILE}.incoming"
            with incoming.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            incoming.replace(self._folder / FILE)
        except OSError as error:
            raise FailedPrecondition(f"{self._folder / FILE} cannot be written: {error.strerror}") from None
        self.memory = memory


def read(folder: Path) -> Memory | None:
    """What a folder's diary says; None if there is none.

    Raises:
        DataLoss: It cannot be read.
    """
    path = folder / FILE
    try:
        memory = config.build(Memory, json.loads(path.read_text()), source=str(path))
        if memory.format != FORMAT:
            raise ValueError(f"format = {memory.format}: was written by another version of podrace")
        return memory
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, PodraceError) as error:
        line = error.message if isinstance(error, PodraceError) else str(error)
        raise DataLoss(f"{path} cannot be read: {line}; move it away to begin anew") from None


def _without_nothing(value: Any) -> Any:
    """The value without what is None: what is missing is read as that."""
    if isinstance(value, Mapping):
        return {name: _without_nothing(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nothing(item) for item in value]
    return value


def names(home: Path) -> list[str]:
    """What is, or was, trained continuously in a home."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in (home / FOLDER).iterdir() if (path / FILE).exists())
    return []
