"""The server of NVIDIA's simulators runs in Python 3.8, in an environment without podrace."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[4] / "simulators" / "isaac" / "server"
SOURCES = sorted(FOLDER.glob("*.py"))
ALLOWED_IMPORTS = {
    *("__future__", "contextlib", "ctypes", "importlib", "inspect", "json", "math", "mmap", "os", "pathlib", "random"),
    *("sys", "traceback", "typing"),
    *("gymnasium", "numpy", "torch"),
}
NEWER_NAMES = {
    *("removeprefix", "removesuffix", "is_relative_to", "readlink", "with_stem", "hardlink_to"),
    *("cache", "pairwise", "batched", "to_thread", "bit_count", "lcm", "nextafter", "UTC", "StrEnum", "Self"),
    *("ParamSpec", "TypeAlias", "Concatenate", "Annotated", "override", "ExceptionGroup", "pidfd_open", "randbytes"),
}
GENERICS = {"list", "dict", "tuple", "set", "frozenset", "type", "deque", "Callable", "Iterator", "Iterable", "Mapping"}


def complaints(source: str) -> list[str]:
    """Lists what Python 3.8, or an environment without podrace, would reject."""
    try:
        tree = ast.parse(source, feature_version=(3, 8))
    except SyntaxError as error:
        return [f"syntax: {error.msg}"]
    if not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body):
        # With this import, annotations are not evaluated.
        return (
            ["annotations are evaluated"]
            if any(isinstance(node, ast.AnnAssign | ast.arg) for node in ast.walk(tree))
            else []
        )
    found = []
    for node in executed(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] not in ALLOWED_IMPORTS]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module not in ALLOWED_IMPORTS:
            found.append(str(node.module))
        elif isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            found += [name] if name in NEWER_NAMES else []
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in GENERICS:
            found.append(f"{node.value.id}[...]")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            found += ["a union of types"] if any(isinstance(side, ast.Constant) for side in sides) else []
        elif isinstance(node, ast.Call):
            found += [keyword.arg for keyword in node.keywords if keyword.arg in ("strict", "slots", "kw_only")]
    return found


def executed(tree: ast.AST) -> list[ast.AST]:
    """Returns all nodes except annotations."""
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        skipped = {id(getattr(node, name, None)) for name in ("annotation", "returns")}
        waiting += [child for child in ast.iter_child_nodes(node) if id(child) not in skipped]
    return nodes


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_server_runs_in_python_3_8_without_podrace(path: Path) -> None:
    assert complaints(path.read_text()) == []


LAZY = "from __future__ import annotations\n"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("match 1:\n    case 1: pass", "syntax"),
        ("with (open('a') as b, open('c') as d): pass", "syntax"),
        ("try: pass\nexcept* ValueError: pass", "syntax"),
        ("def f(x: list[int]) -> None: pass", "annotations are evaluated"),
        (LAZY + "import podrace.errors", "podrace.errors"),
        (LAZY + "from simulators import make", "simulators"),
        (LAZY + "import structlog", "structlog"),
        (LAZY + "Names = dict[str, int]", "dict[...]"),
        (LAZY + "Name = str | None", "a union of types"),
        (LAZY + "'a'.removeprefix('b')", "removeprefix"),
        (LAZY + "zip([1], [2], strict=True)", "strict"),
        (LAZY + "import functools\n@functools.cache\ndef f(): pass", "functools"),
    ],
)
def test_code_unknown_to_python_3_8_is_found(source: str, complaint: str) -> None:
    assert any(found.startswith(complaint) for found in complaints(source))


def test_newer_annotations_are_allowed_if_they_are_not_evaluated() -> None:
    assert complaints(LAZY + "def f(x: list[int] | None) -> dict[str, int]:\n    y: tuple[int, ...] = (1,)") == []
