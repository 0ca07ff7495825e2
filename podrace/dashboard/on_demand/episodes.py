"""Draws episodes of policies as videos, into a folder that is removed when the dashboard stops."""

import asyncio
import importlib.util
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client.rendering import EpisodeSettings, rendered, rendering_request, require_simulators
from podrace.errors import ResourceExhausted
from podrace.tournament.v1.tournament_pb2 import Tournament

MOST_STEPS = 10_000
MOST_PICTURES = 300
MOST_BYTES = 64 << 20
"""Size of a file, at most."""
DEADLINE_SECONDS = 300.0
LARGEST_SEED = 2**31 - 1
CONTENT_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}


def suffix() -> str:
    """Returns the kind of file that can be written here: a video needs PyAV."""
    return ".mp4" if importlib.util.find_spec("av") else ".gif"


@dataclass(frozen=True)
class Episode:
    """A drawn episode."""

    file: Path
    facts: dict[str, Any]
    """`steps`, `episode_return`, `ended` and `pictures`."""

    def remove(self) -> None:
        """Deletes the file."""
        self.file.unlink(missing_ok=True)


class EpisodeStudio:
    """Draws episodes.

    studio = EpisodeStudio(trusted=True)
    episode = await studio.draw(tournament, checkpoints, seed=1)
    studio.close()
    """

    def __init__(self, *, trusted: bool) -> None:
        """Has drawn nothing yet.

        Args:
            trusted: Whether specifications may name user code, because the mesh is that of the own home.
        """
        self._trusted = trusted
        self._folder: Path | None = None
        """Folder of the files, made for the first one; other users cannot read it."""

    async def draw(
        self, tournament: Tournament, checkpoints: Sequence[Checkpoint], options: Struct, seed: int
    ) -> Episode:
        """Plays one episode and draws it.

        Args:
            tournament: The tournament.
            checkpoints: The policy, or the members of an ensemble.
            options: Options of the environment, merged over those of the tournament's training.
            seed: Seed of the episode.

        Raises:
            PodraceError: The environment cannot be drawn, a package is missing, the policy cannot be read, or it took
                too long; the message says which.
        """
        require_simulators()
        kind = suffix()
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="podrace-episodes-"))
        file = self._folder / f"{secrets.token_hex(8)}{kind}"
        how = EpisodeSettings(options, seed, most_steps=MOST_STEPS, most_pictures=MOST_PICTURES)
        request = rendering_request(tournament, checkpoints, how, file, kind, trusted=self._trusted)
        try:
            facts = await rendered(request, DEADLINE_SECONDS)
            size = await asyncio.to_thread(lambda: file.stat().st_size)
            if size > MOST_BYTES:
                raise ResourceExhausted(f"the file has {size} bytes, more than {MOST_BYTES}; use `podrace render`")
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        return Episode(file, facts)

    def close(self) -> None:
        """Removes the folder with all files."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
