"""What is kept of an archived tournament: everything that was decided, and the policy of its champion."""

import contextlib
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from fuzz.worlds import given_spec, published

from leaderboard.checkpoints.archiving import LARGEST_RECORDS_BYTES, TournamentArchiving
from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.generator import Generator
from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.backup.archives import Archives, json_lines
from podrace.checkpoint_store import folder
from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.contents import list_agents
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import fetch
from podrace.database import Database
from podrace.errors import DataLoss, InvalidArgument, NotFound, ResourceExhausted
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.specification.resolve import resolve

NAME, NOW = "gone-abcdef", 1.7e9
OWN = json_lines([{"record": "event", "kind": "tournament_created"}])


async def requests(*names: str, records: bytes = OWN) -> AsyncIterator[pb.ArchiveTournamentRequest]:
    for name in names:
        yield pb.ArchiveTournamentRequest(tournament_id=name, records=records)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[tuple[Database, FolderStore, list[str]]]:
    """A database and a store with a tournament of two agents, and the digests of their checkpoints, best last."""
    state = Database.open(tmp_path / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    store = FolderStore(tmp_path / "store")
    updater, generator, digests = Updater(state, store, SubmissionWatch()), Generator(state), []
    for number in range(2):
        request = pb.GenerateAgentRequest(
            request_id=f"{NAME}-a{number}", tournament_id=NAME, spec=resolve(given_spec()), number=number
        )
        agent: Any = await generator.generate(request)
        submission = published(store.within(NAME), agent, float(number))  # type: ignore[arg-type]
        await updater.submit(submission)
        digests.append(submission.checkpoint.manifest_digest)
    yield state, store, digests
    state.close()


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


async def test_an_archive_outlives_its_tournament_and_every_collection(mesh: Any) -> None:
    state, store, digests = mesh
    manifest, parts = fetch(store.within(NAME), digests[1])
    archiving = TournamentArchiving(state, store, lambda: NOW)
    digest = await archiving.archive(requests(NAME))
    assert await archiving.archive(requests(NAME)) == digest
    deletion = TournamentDeletion(state, store, TournamentOwners())
    await deletion.delete(NAME)
    await deletion.delete_objects()
    collect(store, [], 0.0)
    archives = Archives(store)
    (listed,) = archives.list()
    assert (listed.tournament_id, listed.manifest_digest, listed.time) == (NAME, digest, NOW)
    files = archives.read(NAME)
    assert files["orchestrator.jsonl.gz"] == OWN
    assert files["champion-policy"] == parts["policy"]
    assert json.loads(files["champion.json"])["agent_id"] == manifest.agent_id
    assert list_agents(store, NOW) == []
    archives.delete(NAME)
    collect(store, [], 0.0)
    assert archives.list() == list(store.list_objects()) == []


async def test_the_records_have_every_decision(mesh: Any) -> None:
    state, store, digests = mesh
    await TournamentArchiving(state, store).archive(requests(NAME))
    kept = lines(Archives(store).read(NAME)["leaderboard.jsonl.gz"])
    of = {kind: [line for line in kept if line["record"] == kind] for kind in {line["record"] for line in kept}}
    assert of["specification"][0]["environment"]["id"] == "CartPole-v1"
    assert [line["agent_id"] for line in of["agent"]] == [f"{NAME}-a0", f"{NAME}-a1"]
    assert [line["candidate"]["candidate_id"] for line in of["submission"]] == digests
    assert {line["lease_epoch"] for line in of["submission"]} == {1}
    assert of["board"][0]["candidates"][0] == digests[1]


async def test_a_champion_that_cannot_be_read_does_not_prevent_an_archive(mesh: Any) -> None:
    state, store, digests = mesh
    store._object_path(NAME, digests[1]).unlink()
    await TournamentArchiving(state, store).archive(requests(NAME))
    assert set(Archives(store).read(NAME)) == {"leaderboard.jsonl.gz", "orchestrator.jsonl.gz"}


async def test_a_damaged_archive_is_not_returned(mesh: Any) -> None:
    state, store, _ = mesh
    await TournamentArchiving(state, store).archive(requests(NAME))
    (listed,) = Archives(store).list()
    path = store._object_path(f"podrace-archive-{NAME}", listed.files["leaderboard.jsonl.gz"])
    path.write_bytes(path.read_bytes()[:-1] + b"~")
    with pytest.raises(DataLoss):
        Archives(store).read(NAME)
    with pytest.raises(NotFound, match="podrace archive"):
        Archives(store).read("other")


class KilledError(Exception):
    """In place of the end of the process at a write."""


@pytest.mark.parametrize("fault", [OSError(ENOSPC, "No space left on device"), KilledError()])
async def test_a_full_disk_or_an_end_at_any_write_keeps_the_previous_archive(
    mesh: Any, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    state, store, _ = mesh
    archiving, archives = TournamentArchiving(state, store, lambda: NOW), Archives(store)
    await archiving.archive(requests(NAME))
    earlier, written, failures = archives.read(NAME), folder._written, 0
    newer = json_lines([{"record": "event", "kind": "tournament_completed"}])
    for failing in range(100):
        writes = itertools.count()

        @contextlib.contextmanager
        def faulty(*arguments: Any, number: int = failing, writes: Any = writes) -> Iterator[Path]:
            if next(writes) == number:
                raise fault
            with written(*arguments) as path:
                yield path

        with monkeypatch.context() as patch:
            patch.setattr(folder, "_written", faulty)
            try:
                await archiving.archive(requests(NAME, records=newer))
                break
            except (ResourceExhausted, KilledError):
                failures += 1
        # A new service reads the store as it is.
        assert Archives(FolderStore(Path(store.uri.removeprefix("folder://")))).read(NAME) == earlier
        assert [each.tournament_id for each in archives.list()] == [NAME]
    # The claim, the records, the manifest and the pointer at least.
    assert failures >= 4
    assert archives.read(NAME) == {**earlier, "orchestrator.jsonl.gz": newer}


async def test_requests_name_one_tournament_and_are_limited(mesh: Any) -> None:
    state, store, _ = mesh
    archiving = TournamentArchiving(state, store)
    for names in ((), (NAME, "other")):
        with pytest.raises(InvalidArgument, match="tournament_id"):
            await archiving.archive(requests(*names))
    pieces = [NAME] * (LARGEST_RECORDS_BYTES // 2**22 + 1)
    with pytest.raises(ResourceExhausted):
        await archiving.archive(requests(*pieces, records=bytes(2**22)))
    assert Archives(store).list() == []
