"""Prints what user-defined algorithms declare: the process that podrace.plugins.declarations starts.

    python -m agentpod declare < NAMES

The names are a JSON list. One line of JSON is printed: declarations and problems, each by name.
"""

import json
import os
import sys

from google.protobuf import json_format

from agentpod import algorithms
from podrace.errors import PodraceError
from podrace.plugins import loader
from podrace.plugins.entry_points import class_of
from podrace.specification.catalog import Algorithm
from podrace.specification.declared_algorithms import declaration_message
from podrace.tournament.v1.tournament_pb2 import AlgorithmDeclaration


def run() -> int:
    """Examines the algorithms that stdin names and returns the exit code."""
    names = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w")
    # Whatever a user's module prints must not mix with the answer.
    os.dup2(2, 1)
    loader.confine()
    declarations, problems = {}, {}
    for name in names:
        if class_of(name) is None:
            continue
        try:
            declarations[name] = json_format.MessageToDict(declaration_of(name), preserving_proto_field_name=True)
        except PodraceError as error:
            problems[name] = " ".join(error.message.split())
    output.write(json.dumps({"declarations": declarations, "problems": problems}) + "\n")
    output.flush()
    return 0


def declaration_of(name: str) -> AlgorithmDeclaration:
    """Imports the class of an algorithm and returns its declaration.

    Raises:
        InvalidArgument: The class is unusable.
    """
    cls = algorithms.algorithm_class(name)
    entry = Algorithm(_first_line(cls.__doc__), tuple(sorted(cls.action_kinds)), cls.settings_type.declared())
    return declaration_message(entry)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
