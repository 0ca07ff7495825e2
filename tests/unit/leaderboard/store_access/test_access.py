"""URLs are signed outside of the event loop, for exactly the objects that a request names."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.store_access.access import MOST_FILES, StoreAccess
from podrace.checkpoint.v1 import store_pb2 as pb
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.store import LARGEST_UPLOAD_BYTES, UrlGrant
from podrace.digests import digest
from podrace.errors import InvalidArgument, NamedResource, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"


class SigningStore(FolderStore):
    """A store that signs URLs, and notes in which threads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.threads: set[threading.Thread] = set()

    def grant_upload(self, name: str, size_bytes: int, lifetime_seconds: float) -> UrlGrant:
        return self.grant_read(name, lifetime_seconds)

    def grant_read(self, name: str, lifetime_seconds: float) -> UrlGrant:
        self.threads.add(threading.current_thread())
        return UrlGrant(f"https://store/{name}", {})

    def renew_object(self, name: str, minimum_age_seconds: float) -> bool:
        return self.has_object(name)


@pytest.fixture
def store(mesh: Any, tmp_path: Path) -> SigningStore:
    mesh.store = SigningStore(tmp_path / "signing")
    return mesh.store  # type: ignore[no-any-return]


@pytest.fixture
def access(mesh: Any, store: SigningStore) -> StoreAccess:
    return StoreAccess(mesh.state, store, renew_after_seconds=0.0)


@pytest.fixture
async def published(mesh: Any, store: SigningStore, make_spec: Callable[..., TournamentSpec]) -> tuple[Agent, str]:
    """An agent that was claimed for epoch 1, and the digest of its manifest."""
    agent = await mesh.generate(make_spec(), 0)
    return agent, mesh.publish(agent, 5.0, replay={"learner": b"state"}).checkpoint.manifest_digest


def uploads(agent: Agent, *sizes: int) -> pb.GrantUploadsRequest:
    files = [pb.StoredFile(digest=digest(b"%d" % number), size_bytes=size) for number, size in enumerate(sizes)]
    return pb.GrantUploadsRequest(tournament_id=TOURNAMENT, agent_id=agent.agent_id, lease_epoch=1, files=files)


async def test_uploads_are_signed_in_another_thread(
    access: StoreAccess, store: SigningStore, published: tuple[Agent, str]
) -> None:
    request = uploads(published[0], 1, 2)
    answer = await access.grant_uploads(request)
    assert [upload.digest for upload in answer.uploads] == [file.digest for file in request.files]
    assert store.threads
    assert threading.current_thread() not in store.threads


async def test_too_many_or_too_large_uploads_are_refused(access: StoreAccess, published: tuple[Agent, str]) -> None:
    for sizes in ([1, LARGEST_UPLOAD_BYTES + 1], [1] * (MOST_FILES + 1)):
        with pytest.raises(InvalidArgument):
            await access.grant_uploads(uploads(published[0], *sizes))


async def test_reads_are_signed_in_another_thread_for_the_objects_that_are_named(
    access: StoreAccess, store: SigningStore, published: tuple[Agent, str]
) -> None:
    agent, manifest_digest = published
    request = pb.GrantReadsRequest(tournament_id=TOURNAMENT, agent_id=agent.agent_id, manifest_digest=manifest_digest)
    answer = await access.grant_reads(request)
    assert answer.own
    assert len(answer.reads) == 3
    request.digests.extend([digest(b"state"), manifest_digest, digest(b"unknown")])
    named = await access.grant_reads(request)
    assert [read.digest for read in named.reads] == [manifest_digest, digest(b"state")]
    assert threading.current_thread() not in store.threads


async def test_an_object_or_agent_that_does_not_exist_is_named(
    access: StoreAccess, published: tuple[Agent, str]
) -> None:
    request = pb.RenewObjectsRequest(
        tournament_id=TOURNAMENT, agent_id=published[0].agent_id, lease_epoch=1, digests=["0" * 64]
    )
    with pytest.raises(NotFound) as raised:
        await access.renew_objects(request)
    assert raised.value.resource == NamedResource("object", "0" * 64)
    request.agent_id = f"{TOURNAMENT}-a999"
    with pytest.raises(NotFound) as raised:
        await access.renew_objects(request)
    assert raised.value.resource == NamedResource("agent", request.agent_id)
