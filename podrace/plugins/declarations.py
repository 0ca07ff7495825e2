"""Examines the classes of user-defined algorithms in a separate process, and returns what they declare as data.

    fill_declarations(spec, os.environ)

The process imports torch and the user's module. The caller (the command or the Python client) imports neither.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

from google.protobuf import json_format

from podrace.errors import FieldViolation
from podrace.plugins.entry_points import class_of
from podrace.specification import catalog
from podrace.specification.messages import bad_spec
from podrace.tournament.v1.tournament_pb2 import AlgorithmDeclaration, TournamentSpec

LONGEST_SECONDS = 120.0
"""Time limit of the process; it imports torch."""
LAST_LINE_CHARACTERS = 300


def fill_declarations(spec: TournamentSpec, environ: Mapping[str, str]) -> None:
    """Adds the declarations of user-defined algorithms that a specification lacks, in place. Blocks.

    Raises:
        InvalidArgument: A class is unusable; the message has its key and what is wrong (BAD_SPEC).
    """
    lacking = [name for name in spec.algorithms if not _is_known(spec, name) and class_of(name) is not None]
    if lacking:
        for name, declaration in declare(lacking, environ).items():
            spec.algorithms[name].declaration.CopyFrom(declaration)


def _is_known(spec: TournamentSpec, name: str) -> bool:
    return name in catalog.ALGORITHMS or spec.algorithms[name].HasField("declaration")


def declare(
    names: Iterable[str], environ: Mapping[str, str], *, seconds: float = LONGEST_SECONDS
) -> dict[str, AlgorithmDeclaration]:
    """Returns what algorithms declare, by name: `python:module:Class`, or the name of an installed entry point.

    Names that do not stand for a class are left out.

    Args:
        names: Names of algorithms.
        environ: Environment variables of the process; the search path of this process is added.
        seconds: Time limit of the process.

    Raises:
        InvalidArgument: A class is unusable (BAD_SPEC).
    """
    wanted = sorted(names)
    paths = filter(None, [environ.get("PYTHONPATH", ""), *sys.path])
    try:
        child = subprocess.run(
            [sys.executable, "-m", "agentpod", "declare"],
            input=json.dumps(wanted).encode(),
            env={**environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        answer = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        raise bad_spec(f"algorithms.{wanted[0]}: its class was not imported within {seconds:g} s") from None
    except ValueError:
        raise bad_spec(f"algorithms.{wanted[0]}: its class cannot be examined here: {_death(child)}") from None
    violations = [FieldViolation(f"algorithms.{name}", problem) for name, problem in sorted(answer["problems"].items())]
    if violations:
        raise bad_spec("; ".join(map(str, violations)), violations)
    return {
        name: json_format.ParseDict(found, AlgorithmDeclaration()) for name, found in answer["declarations"].items()
    }


def _death(child: "subprocess.CompletedProcess[bytes]") -> str:
    lines = [line.strip() for line in child.stderr.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1][:LAST_LINE_CHARACTERS] if lines else f"exit code {child.returncode}"
    return f"{last}; it needs podrace[agentpod] and the module" if "No module named" in last else last
