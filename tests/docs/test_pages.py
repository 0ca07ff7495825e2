"""The documents agree with the repository: paths, links, quoted errors, and the generated pages."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import REPOSITORY, documents

PACKAGES = ("podrace", "orchestrator", "leaderboard", "agentpod", "simulators")
FOLDERS = (*PACKAGES, "protos", "examples", "benchmarks", "deploy", "tests", "docs")
_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
_FENCED = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
NOT_HERE = {
    # A reader is asked to write these.
    "agentpod/algorithms/spo.py",
    "examples/spo.toml",
    "leaderboard/evolution/greedy.py",
    "deploy/compose/secrets/store_access_key",
    "deploy/compose/secrets/store_secret_key",
    # Images.
    "podrace/agentpod-cuda",
    "podrace/simulators",
}
"""What looks like a path of the repository and is not there."""


def prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text())


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_paths_that_a_document_names_exist(path: Path):
    named = set(_PATH.findall(prose(path))) - NOT_HERE
    assert not [name for name in named if not (REPOSITORY / name).exists() and "<" not in name]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_of_a_document_lead_somewhere(path: Path):
    links = set(_LINK.findall(prose(path)))
    assert not [link for link in links if not (path.parent / link).exists()]


_PACKAGE_ROW = re.compile(r"^\| `(\w+)/(\w+)` \| .+ \| (\w+) \|$", re.MULTILINE)


def test_the_architecture_lists_every_package():
    listed = {f"{top}/{name}" for top, name, _ in _PACKAGE_ROW.findall((REPOSITORY / "ARCHITECTURE.md").read_text())}
    written = {path.parent for top in PACKAGES for path in (REPOSITORY / top).glob("*/__init__.py")}
    assert listed == {path.relative_to(REPOSITORY).as_posix() for path in written}


def test_the_architecture_states_the_layers_of_import_linter():
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {one["containers"][0]: one["layers"] for one in contracts if one["type"] == "layers"}
    rows = _PACKAGE_ROW.findall((REPOSITORY / "ARCHITECTURE.md").read_text())
    stated = {(top, name): int(layer) for top, name, layer in rows if layer.isdigit()}
    assert stated == {
        (top, name): number
        for top in {top for top, _ in stated}
        for number, layer in enumerate(reversed(layers[top]), start=1)
        for name in re.split(r" [|:] ", layer)
        if (REPOSITORY / top / name).is_dir()
    }


def test_the_index_of_the_examples_lists_every_file():
    folder = REPOSITORY / "examples"
    linked = {folder / link for link in _LINK.findall((folder / "README.md").read_text())}
    files = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert files - linked == {folder / "README.md", *folder.glob("custom/*/package.json")}


ORCHESTRATOR = REPOSITORY / "orchestrator"


def texts_of(path: Path) -> Iterator[str]:
    """Yields the strings of a source file; what an f-string fills in is left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_errors_that_troubleshooting_quotes_are_in_the_sources():
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(quoted) > 20
    sources = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py") if "_pb2" not in path.name)
    texts = "\n".join(text for path in sources for text in texts_of(path))
    assert not [text for text in quoted if text not in texts]


def recorded_kinds() -> set[str]:
    """Kinds of events that the orchestrator records, by their form: a subject of events and a participle."""
    paths = [path for folder in ("assignments", "pool", "tournaments") for path in ORCHESTRATOR.glob(f"{folder}/*.py")]
    texts = {text for path in [*paths, ORCHESTRATOR / "state" / "transitions.py"] for text in texts_of(path)}
    subjects = "tournament|champion|pod|pool|agent|algorithm|evaluation|evaluator"
    return {text for text in texts if re.fullmatch(f"({subjects})_[a-z]*(ed|ing|gone|short|left|unknown)", text)}


def test_kinds_of_events_are_documented():
    page = (REPOSITORY / "docs" / "monitoring.md").read_text()
    described = {
        kind for line in page.splitlines() if line.startswith("| `") for kind in re.findall("`([a-z]+_[a-z]+)`", line)
    }
    assert len(recorded_kinds()) > 15
    assert recorded_kinds() <= described


def test_the_cluster_tutorial_has_the_commands_of_the_local_overlay_in_their_order():
    header = (REPOSITORY / "deploy/k8s/overlays/local/kustomization.yaml").read_text()
    commands = [command.partition("   (")[0] for command in re.findall("^#   (.+)$", header, re.MULTILINE)]
    lines = (REPOSITORY / "docs/tutorials/cluster.md").read_text().splitlines()
    assert len(commands) == 6
    assert [line for line in lines if line in commands] == commands


def test_generated_pages_are_up_to_date():
    command = [sys.executable, "docs/tools/reference.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
