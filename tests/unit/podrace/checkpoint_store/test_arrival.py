"""Tests how objects are received: in any pieces, with their digest, without a copy."""

import hashlib
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from podrace.checkpoint_store import arrival
from podrace.checkpoint_store.arrival import Arrival, receive


@pytest.fixture(params=["behind", "with"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Computes the digest in a separate thread, or in the receiving one."""
    monkeypatch.setattr(arrival, "OVERLAPPED_BYTES", 0 if request.param == "behind" else 2**60)
    monkeypatch.setattr(arrival, "CHUNK_BYTES", 100)
    return str(request.param)


def source(data: bytes, most_bytes: int = 2**60) -> Callable[[memoryview], int]:
    """Returns a source of some bytes that gives at most `most_bytes` per call."""
    rest = memoryview(data)

    def read_into(buffer: memoryview) -> int:
        nonlocal rest
        count = min(len(buffer), len(rest), most_bytes)
        buffer[:count] = rest[:count]
        rest = rest[count:]
        return count

    return read_into


def of(data: bytes) -> Arrival:
    return Arrival(data, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 2345])
@pytest.mark.parametrize("most_bytes", [1, 7, 100, 1000])
def test_data_received_in_any_pieces_is_whole_and_has_its_digest(way: str, size: int, most_bytes: int) -> None:
    data = hashlib.shake_256(b"x").digest(size)
    reported: list[int] = []
    assert receive(size, source(data, most_bytes), reported.append) == of(data)
    assert reported == sorted(reported)
    assert reported[-1:] == ([size] if size else [])


@pytest.mark.parametrize("arrived", [0, 1, 150, 999])
def test_a_source_that_ends_early_gives_the_bytes_received(way: str, arrived: int) -> None:
    data = bytes(range(256)) * 4
    assert receive(1000, source(data[:arrived])) == of(data[:arrived])


def test_no_more_than_the_expected_bytes_are_read(way: str) -> None:
    assert receive(150, source(bytes(1000))) == of(bytes(150))


def test_an_error_of_the_source_is_raised_and_leaves_no_thread(way: str) -> None:
    before = threading.active_count()
    give = source(bytes(1000), 100)

    def fail_at_the_end(buffer: memoryview) -> int:
        if not give(buffer):
            raise ConnectionResetError("cut")
        return 100

    with pytest.raises(ConnectionResetError):
        receive(5000, fail_at_the_end)
    assert threading.active_count() == before


def test_an_object_is_held_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 32 * 2**20
    data = bytes(size)
    tracemalloc.start()
    try:
        assert len(receive(size, source(data)).data) == size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size <= peak < size * 1.1
