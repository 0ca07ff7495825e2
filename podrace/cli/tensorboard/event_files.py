"""Appends values to event files of TensorBoard, one folder for each run. Imports the package tensorboard on first use.

The folder of a tournament has a file `podrace.json` with what was written before, so a later call adds what is new.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from podrace.cli.tensorboard.scalars import ScalarPoint
from podrace.cli.terminal.atomic_file import whole_file
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, Unimplemented
from podrace.field_bounds import is_id

STATE = "podrace.json"


@dataclass
class WrittenState:
    """What the event files of a tournament have."""

    sequence: int = 0
    """Sequence number of the last submission."""
    described: list[str] = field(default_factory=list)
    """Runs whose hyperparameters were written."""


class EventFiles:
    """The event files of one tournament.

    files = EventFiles(folder, tournament_id)
    files.describe(agent_id, {"learning_rate": 3e-4})
    files.write(points)
    files.save()
    """

    def __init__(self, folder: Path, tournament_id: str) -> None:
        """Reads what was written before.

        Args:
            folder: Folder that TensorBoard shows; created if it does not exist.
            tournament_id: The tournament, whose runs get a folder of this name.

        Raises:
            Unimplemented: The package tensorboard is not installed.
            FailedPrecondition: The folder cannot be created.
            DataLoss: The file with what was written before is damaged.
        """
        self._events, self._records = _protocol()
        self._tournament_id = tournament_id
        self.folder = folder / _checked(tournament_id)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FailedPrecondition(f"{self.folder}: cannot be created: {error.strerror}") from None
        self._file = f"events.out.tfevents.{int(time.time())}.podrace"
        self.state = _read_state(self.folder / STATE)
        self.written = 0
        """Number of values that were written."""

    def write(self, points: Iterable[ScalarPoint]) -> None:
        """Appends values to the files of their runs."""
        by_run: dict[str, list[Any]] = defaultdict(list)
        for point in points:
            value = {"tag": point.tag, "simple_value": point.value}
            by_run[point.run].append(
                self._events.Event(wall_time=point.wall_time, step=point.step, summary={"value": [value]})
            )
            self.written += 1
        for run, events in by_run.items():
            self._append(run, events)

    def describe(self, run: str, values: Mapping[str, Any]) -> None:
        """Writes the hyperparameters of a run once, for the dashboard of hyperparameters."""
        if run in self.state.described:
            return
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
        }
        self._append(run, [self._events.Event(wall_time=time.time(), summary=hparams_pb(plain, trial_id=run))])
        self.state.described.append(run)

    def save(self) -> None:
        """Records what was written, so that a later call does not write it again."""
        with whole_file(self.folder / STATE) as place:
            place.write_text(json.dumps(asdict(self.state)))

    def _append(self, run: str, events: Iterable[Any]) -> None:
        path = self.folder / _checked(run).removeprefix(f"{self._tournament_id}-") / self._file
        path.parent.mkdir(exist_ok=True)
        begins = not path.exists()
        with path.open("ab") as file:
            records = self._records(file)
            if begins:
                records.write(
                    self._events.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()
                )
            for event in events:
                records.write(event.SerializeToString())


def _checked(name: str) -> str:
    """Returns a name that becomes a folder; services that send others are refused."""
    if not is_id(name):
        raise InvalidArgument(f"{name!r} is not the id of a tournament or an agent")
    return name


def _read_state(path: Path) -> WrittenState:
    try:
        return WrittenState(**json.loads(path.read_text()))
    except FileNotFoundError:
        return WrittenState()
    except (ValueError, TypeError):
        raise DataLoss(f"{path}: damaged; remove its folder to write all values again") from None


def _protocol() -> tuple[Any, Any]:
    """Returns the messages and the record writer of the package tensorboard."""
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise Unimplemented(
            "event files need the package tensorboard: pip install 'tensorboard>=2.21' (podrace[tensorboard])"
        ) from None
    return event_pb2, RecordWriter
