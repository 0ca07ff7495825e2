"""Serves a servicer on a free port, as a third party does: with gRPC and the generated code of the protos alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc


@contextmanager
def served(add: Any, servicer: object) -> Iterator[str]:
    """Serves until the block ends; gives the address."""
    server = grpc.server(ThreadPoolExecutor(16))
    add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0)
