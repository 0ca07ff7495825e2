"""Limits lists by bytes, so that an answer with large entries stays below the message limit of gRPC. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

PAGE_BYTES = 2 << 20
"""Most bytes of the entries of one answer, unless a single entry is larger. gRPC clients accept 4 MiB by default."""

Entry = TypeVar("Entry", bound=Message)
Record = TypeVar("Record")


def fitting(entries: Iterable[Entry], most_bytes: int = PAGE_BYTES) -> list[Entry]:
    """Returns the first entries that have at most `most_bytes` together; at least one if there is any.

    Entries after these are not taken from the iterable, except one.
    """
    taken: list[Entry] = []
    for entry in entries:
        most_bytes -= entry.ByteSize()
        if taken and most_bytes < 0:
            break
        taken.append(entry)
    return taken


def page_of(
    records: Sequence[Record], build: Callable[[Record], Entry], token: Callable[[Record], str], *, more: bool
) -> tuple[list[Entry], str]:
    """Builds the entries of a page and the token of the next page; empty on the last page.

    Args:
        records: What the page would have if there were no limit by bytes.
        build: Makes the entry of a record.
        token: Returns the token of the page that begins after a record.
        more: Whether there may be records after these.
    """
    entries = fitting(map(build, records))
    cut = more or len(entries) < len(records)
    return entries, token(records[len(entries) - 1]) if entries and cut else ""
