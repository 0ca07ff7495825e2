"""Finds the policies that a server serves: the champion of a tournament, or an exported folder.

while True:
    version = await source.newest()
    if engine.wants(version):
        await engine.offer(await source.read(version), version)
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from podrace.client import Client
from podrace.client.delivery import CheckpointFetcher
from podrace.digests import digest
from podrace.errors import InvalidArgument, NamedResource, NotFound
from podrace.policy.agents import of_agent
from podrace.policy.loading import checked_onnx_file
from podrace.serving.decisions.versions import version_of
from podrace.serving.policy_version import PolicyVersion
from podrace.tournament.v1.tournament_pb2 import Tournament

MODEL_FILE = "policy.onnx"


class PolicySource(Protocol):
    """Where policies come from; the module shows the loop."""

    @property
    def description(self) -> str:
        """What it is, as human-readable text."""
        ...

    async def newest(self) -> str:
        """Returns the version that is offered now; empty: none yet.

        Raises:
            PodraceError: It cannot be read now.
        """
        ...

    async def read(self, version: str) -> bytes:
        """Returns the ONNX file of a version.

        Raises:
            NotFound: The source does not have it.
            PodraceError: It cannot be read now, or is damaged.
        """
        ...


class _Read(NamedTuple):
    stamp: tuple[int, ...]
    version: str
    model: bytes


class FolderSource:
    """A folder that `podrace export` wrote, or an ONNX file of one. An export replaces the file as a whole.

    Another file of the same checkpoint, such as the policy of another agent, is another version. It is named by the
    digests of both.
    """

    def __init__(self, path: Path, *, awaited: bool = False) -> None:
        """Creates the source.

        Args:
            path: The folder, or the file.
            awaited: Whether the policy may be missing until something writes it.
        """
        self._path = path / MODEL_FILE if awaited or path.is_dir() else path
        self._awaited = awaited
        self._read: _Read | None = None
        self._files: dict[str, str] = {}
        """Digest of the first file of each checkpoint."""

    @property
    def description(self) -> str:
        """See PolicySource."""
        return f"file {self._path}"

    async def newest(self) -> str:
        """See PolicySource."""
        if self._awaited and not self._path.exists():
            return ""
        return (await asyncio.to_thread(self._current)).version

    async def read(self, version: str) -> bytes:
        """See PolicySource."""
        found = await asyncio.to_thread(self._current)
        if found.version != version:
            named = NamedResource("version", version)
            raise NotFound(f"version {version[:12]}: {self._path} has {found.version[:12]}", resource=named)
        return found.model

    def _current(self) -> _Read:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if self._read is None or self._read.stamp != stamp:
                model = self._path.read_bytes()
                version, file = PolicyVersion(model).version, digest(model)
                if self._files.setdefault(version, file) != file:
                    version = version_of([version, file])
                self._read = _Read(stamp, version, model)
        except FileNotFoundError:
            raise NotFound(f"{self._path}: there is no such file; `podrace export TOURNAMENT` writes one") from None
        except OSError as error:
            raise InvalidArgument(f"{self._path}: cannot be read: {error.strerror}") from None
        return self._read


class TournamentSource:
    """The champion of a tournament, read through the API, and any other checkpoint of it."""

    def __init__(
        self, client: Client, tournament_id: str, fetcher_of: Callable[[Tournament], CheckpointFetcher], agent: str = ""
    ) -> None:
        """Creates the source; the mesh is asked for the tournament when a policy is wanted.

        Args:
            client: Client of the mesh.
            tournament_id: The tournament.
            fetcher_of: Returns what fetches its checkpoints; called once.
            agent: The agent whose policies are read, if agents have separate parameters.
        """
        self._client, self._tournament_id, self._fetcher_of, self._agent = client, tournament_id, fetcher_of, agent
        self._found: tuple[Tournament, CheckpointFetcher] | None = None
        self._champion: tuple[str, Sequence[str]] = "", ()

    async def _opened(self) -> tuple[Tournament, CheckpointFetcher]:
        if self._found is None:
            tournament = await self._client.get_tournament(self._tournament_id)
            self._found = tournament, self._fetcher_of(tournament)
        return self._found

    @property
    def description(self) -> str:
        """See PolicySource."""
        return f"champion of {self._tournament_id}"

    async def newest(self) -> str:
        """See PolicySource."""
        tournament, _ = await self._opened()
        try:
            members = await self._client.get_champion_members(tournament)
        except NotFound:
            # Raised for a tournament without a candidate as well; one that was deleted never has another.
            await self._client.get_tournament(self._tournament_id)
            return ""
        digests = [member.manifest_digest for member in members]
        self._champion = version_of(digests), digests
        return self._champion[0]

    async def read(self, version: str) -> bytes:
        """See PolicySource."""
        _, fetcher = await self._opened()
        champion, digests = self._champion
        wanted = digests if version == champion else [version]
        fetched = [of_agent(await fetcher.fetch(digest), self._agent) for digest in wanted]
        return await asyncio.to_thread(checked_onnx_file, fetched)
