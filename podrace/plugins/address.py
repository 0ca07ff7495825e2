"""Parses the address of a plugin: a Python function or a gRPC service. Pure.

parse("python:mine:propose")        # PythonFunction(module="mine", name="propose")
parse("grpc://127.0.0.1:50070")     # GrpcService(target="127.0.0.1:50070")
parse("mine:propose")               # None
"""

import re
from dataclasses import dataclass

EXPECTED = "expected python:module:function or grpc://host:port"

_PYTHON = re.compile(r"python:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")
_GRPC = re.compile(r"grpc://(?P<target>unix:/[^\s]+|(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5}))")


@dataclass(frozen=True)
class PythonFunction:
    """A function of a Python module."""

    module: str
    """Dotted name of the module."""
    name: str
    """Name of the function in the module."""


@dataclass(frozen=True)
class GrpcService:
    """A gRPC service that the user runs."""

    target: str
    """`host:port`, or `unix:/path`."""


def parse(address: str) -> PythonFunction | GrpcService | None:
    """Returns what an address names; None if it is malformed."""
    if found := _PYTHON.fullmatch(address):
        return PythonFunction(found["module"], found["function"])
    found = _GRPC.fullmatch(address)
    if found and (found["port"] is None or 0 < int(found["port"]) < 65536):
        return GrpcService(found["target"])
    return None
