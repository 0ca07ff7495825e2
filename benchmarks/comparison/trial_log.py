"""Records what the trials of a study publish, and returns the result of the study. Standard library only.

Trials run in several processes. Each process has a file, to which it appends lines, so no lock is needed:

    {"seconds": since the study began, "steps": environment steps since the line before, "score": mean return,
     "error": its standard error, "policy": file, "trial_steps": steps that the policy was trained on, "trial": name}
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PATTERN = "trials-*.jsonl"


@dataclass(frozen=True)
class Entry:
    """One score of a trial."""

    seconds: float
    steps: int
    score: float
    error: float
    policy: str
    """File of the policy; empty if it was not better than others of its process."""
    trial_steps: int
    trial: str


class TrialLog:
    """The log of one process."""

    def __init__(self, folder: Path) -> None:
        """Appends to the file of this process in a folder."""
        self._folder, self._path = folder, folder / f"trials-{os.getpid()}.jsonl"
        self.best: float | None = None

    def new_policy(self, score: float) -> Path | None:
        """Returns where to save a policy; None if a better one of this process was saved before."""
        if self.best is not None and score <= self.best:
            return None
        self.best = score
        return self._folder / f"policy-{os.getpid()}-{len(list(self._folder.glob(f'policy-{os.getpid()}-*')))}.pt"

    def add(self, entry: Entry) -> None:
        """Appends an entry."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


@dataclass(frozen=True)
class Study:
    """The result of a study."""

    entries: Sequence[Entry]
    """Of all processes, in order of time; only those within the budget."""

    @property
    def steps(self) -> int:
        """Environment steps of all trials."""
        return sum(entry.steps for entry in self.entries)

    @property
    def trials(self) -> int:
        """Number of trials with a score."""
        return len({entry.trial for entry in self.entries})

    @property
    def best(self) -> Entry | None:
        """The entry with the highest score and a policy; None without entries."""
        saved = [entry for entry in self.entries if entry.policy]
        return max(saved, key=lambda entry: entry.score) if saved else None

    def published(self) -> list[tuple[float, int, Entry]]:
        """Returns seconds, environment steps of all trials until then, and the entry, for entries with a policy."""
        found, steps = [], 0
        for entry in self.entries:
            steps += entry.steps
            if entry.policy:
                found.append((entry.seconds, steps, entry))
        return found


def read(folder: Path, seconds: float) -> Study:
    """Reads the logs of a study, without what arrived after its budget."""
    entries = [
        Entry(**json.loads(line))
        for path in sorted(folder.glob(PATTERN))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.endswith("}")
    ]
    return Study(sorted((one for one in entries if one.seconds <= seconds), key=lambda one: one.seconds))
