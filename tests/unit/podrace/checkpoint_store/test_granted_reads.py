"""A signed URL that the store refuses is not used again."""

from types import SimpleNamespace
from typing import Any

import pytest

from podrace.checkpoint_store.arrival import Arrival
from podrace.checkpoint_store.granted import GrantedObjects
from podrace.digests import digest
from podrace.errors import PodraceError, Unavailable

DATA = b"a part"
NAME = digest(DATA)


def test_another_url_is_requested_after_one_was_refused() -> None:
    urls: list[str] = []

    def call(method: str, request: Any, **fields: Any) -> Any:
        urls.append(f"url {len(urls)}")
        read = SimpleNamespace(digest=NAME, url=urls[-1])
        return SimpleNamespace(reads=[read], lifetime=SimpleNamespace(seconds=3600), own=True)

    def get(grant: Any, what: str, largest_bytes: int | None) -> Arrival:
        if grant.url == "url 0":
            raise Unavailable("the signature is that of earlier keys")
        return Arrival(DATA, NAME)

    client: Any = SimpleNamespace(call=call)
    requests: Any = SimpleNamespace(get=get)
    objects = GrantedObjects(client, requests, "minio://host/bucket", clock=lambda: 0.0)
    with pytest.raises(PodraceError):
        objects.get_object(NAME)
    assert objects.get_object(NAME) == DATA
    assert objects.get_object(NAME) == DATA
    assert urls == ["url 0", "url 1"]
