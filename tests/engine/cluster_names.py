"""Answers questions about the names of Services for a cluster without a DNS, with the addresses of their endpoints."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

PORT = 53
ADDRESS_RECORD, INTERNET = 1, 1
ANSWER, NO_SUCH_NAME = 0x8580, 0x8583
"""Flags of answers: authoritative, recursion desired and available; the second with the code for unknown names."""
CACHED_SECONDS = 1.0
STOP_SECONDS = 0.5
NAME_OF_QUESTION = 0xC00C
"""Pointer to the name in the question, which follows a header of 12 bytes."""
Endpoints = Callable[[str], Sequence[str] | None]
"""Returns the IPv4 addresses of a Service; None if there is no such Service."""


def answer(question: bytes, suffix: str, endpoints: Endpoints) -> bytes:
    """Returns the answer to one question.

    Args:
        question: The message, as it was received.
        suffix: What follows the name of a Service, without the first dot. Other names do not exist.
        endpoints: Finds the addresses.
    """
    labels, place = [], 12
    while length := question[place]:
        labels.append(question[place + 1 : place + 1 + length].decode())
        place += 1 + length
    (kind, _), end = struct.unpack("!HH", question[place + 1 : place + 5]), place + 5
    name, _, rest = ".".join(labels).partition(".")
    found = endpoints(name) if rest == suffix else None
    addresses = (found or ()) if kind == ADDRESS_RECORD else ()
    flags = NO_SUCH_NAME if found is None else ANSWER
    header = question[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0)
    record = struct.pack("!HHHIH", NAME_OF_QUESTION, ADDRESS_RECORD, INTERNET, 1, 4)
    return header + question[12:end] + b"".join(record + socket.inet_aton(address) for address in addresses)


def cached(kubectl: Callable[..., str]) -> Endpoints:
    """Returns a function that asks the API server, but not about the same name twice within a second.

    Args:
        kubectl: Runs a command in the namespace, and returns what it prints; empty if it fails.
    """
    known: dict[str, tuple[float, Sequence[str] | None]] = {}

    def find(name: str) -> Sequence[str] | None:
        asked, found = known.get(name, (float("-inf"), None))
        if time.monotonic() - asked > CACHED_SECONDS:
            text = kubectl("get", "endpoints", name, "-o", "json", "--ignore-not-found", check=False)
            subsets = json.loads(text).get("subsets", ()) if text else None
            found = None if subsets is None else [one["ip"] for each in subsets for one in each.get("addresses", ())]
            known[name] = time.monotonic(), found
        return found

    return find


@contextmanager
def answering(address: str, suffix: str, endpoints: Endpoints) -> Iterator[None]:
    """Answers questions at port 53 of an address of this machine during the block."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind((address, PORT))
        listener.settimeout(STOP_SECONDS)
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                with suppress(TimeoutError):
                    question, sender = listener.recvfrom(512)
                    listener.sendto(answer(question, suffix, endpoints), sender)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
