"""Rules that the source tree keeps, as functions from a folder to the places that break them."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("podrace", "orchestrator", "leaderboard", "agentpod", "simulators")
MOST_LINES, MOST_FUNCTION_LINES, MOST_MODULES = 400, 40, 20
CATCH_ALL = {"utils", "util", "common", "helpers", "misc", "core"}
SQL = re.compile(
    r"^(?:UPDATE|PRAGMA) |\bSELECT .*|\b(?:INSERT (?:OR \w+ )?INTO|DELETE FROM|CREATE TABLE|CREATE INDEX)\b"
    r"|\bORDER BY\b|\bWHERE\b|\w (?:=|!=|<|>|>=|<=) \?|\bjson_each\("
)
"""A statement in SQL, or a part of one."""
SQL_HOLDERS = ("orchestrator/state/", "leaderboard/store/", "podrace/database/")
USER_CODE_HOLDER = "podrace/plugins/"
LISTED = re.compile(r"^ *\w+\.py(?:,| {2,})", re.MULTILINE)
LISTED_PACKAGE = re.compile(r"^ *(\w+)/ {2,}", re.MULTILINE)


def modules(root: Path) -> list[Path]:
    """Written modules of the packages below a folder; generated code is left out."""
    found = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return sorted(path for path in found if "_pb2" not in path.name and "__pycache__" not in path.parts)


def long_files(root: Path) -> dict[str, int]:
    """Files with too many lines."""
    lengths = {_name(root, path): len(path.read_text().splitlines()) for path in modules(root)}
    return {name: length for name, length in lengths.items() if length > MOST_LINES}


def long_functions(root: Path) -> dict[str, int]:
    """Functions with too many lines, the docstring left out."""
    found = {}
    for path in modules(root):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _code_lines(node) > MOST_FUNCTION_LINES:
                found[f"{_name(root, path)}:{node.name}"] = _code_lines(node)
    return found


def large_packages(root: Path) -> dict[str, int]:
    """Packages with too many modules directly in them."""
    count: dict[str, int] = defaultdict(int)
    for path in modules(root):
        if path.name != "__init__.py":
            count[_name(root, path.parent)] += 1
    return {name: number for name, number in count.items() if number > MOST_MODULES}


def catch_all_modules(root: Path) -> list[str]:
    """Modules and packages whose name says nothing about their content."""
    return [_name(root, path) for path in modules(root) if CATCH_ALL & {path.stem, path.parent.name}]


def repeated_classes(root: Path) -> dict[str, list[str]]:
    """Public classes whose name another class of the same top-level package has as well."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in modules(root):
        package = path.relative_to(root).parts[0]
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[package, node.name].append(_name(root, path))
    return {f"{package}: {name}": paths for (package, name), paths in places.items() if len(paths) > 1}


def stale_listings(root: Path) -> list[str]:
    """Packages whose docstring lists their modules, but not each module and subpackage, or some that do not exist."""
    found = []
    for path in modules(root):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name != "__init__.py" or len(LISTED.findall(text)) < 2:
            continue
        listed = set(re.findall(r"(?<![\w./])([a-z]\w*)\.py\b", text))
        actual = {each.stem for each in path.parent.glob("*.py")} - {"__init__", "__main__"}
        below = {each.stem for each in path.parent.rglob("*.py")}
        wrong = sorted((actual - listed) | (listed - below)) + _stale_packages(path.parent, text)
        found += [f"{_name(root, path)}: {name}" for name in wrong]
    return found


def _stale_packages(folder: Path, text: str) -> list[str]:
    """Subpackages that a listing lacks, and those that it has and that do not exist."""
    actual = {each.parent.name for each in folder.glob("*/__init__.py")}
    named = set(re.findall(r"(?<![\w./])([a-z]\w*)/", text))
    return sorted((actual - named) | {name for name in LISTED_PACKAGE.findall(text) if not (folder / name).is_dir()})


def packages_apart_by_a_plural(root: Path) -> list[str]:
    """Sibling packages whose names differ only by a plural `s`."""
    found = []
    for package in PACKAGES:
        for folder in [root / package, *(root / package).rglob("*/")]:
            names = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
            found += [_name(root, folder / name) for name in names if f"{name}s" in names]
    return sorted(set(found))


def sql_elsewhere(root: Path) -> list[str]:
    """Statements outside the modules that hold the databases."""
    return [
        f"{_name(root, path)}:{node.lineno}"
        for path in modules(root)
        if not _name(root, path).startswith(SQL_HOLDERS)
        for node in _strings(ast.parse(path.read_text()))
        if SQL.search(str(node.value).strip())
    ]


def user_code_elsewhere(root: Path) -> list[str]:
    """Calls that import a module by a name known only at run time, outside the package that runs user code."""
    return [
        f"{_name(root, path)}:{node.lineno}"
        for path in modules(root)
        if not _name(root, path).startswith(USER_CODE_HOLDER)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _called(node).rpartition(".")[2] in {"import_module", "__import__"}
        if not (node.args and isinstance(node.args[0], ast.Constant))
    ]


def unescaped_prints(root: Path) -> list[str]:
    """Calls that write the message of an error, which may quote text of others, without `printable`."""
    return [
        f"{_name(root, path)}:{node.lineno}"
        for path in modules(root)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _called(node) in {"print", "click.echo", "sys.stderr.write"}
        if ".message" in ast.unparse(node) and "printable(" not in ast.unparse(node)
    ]


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if is_docstring else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def _strings(tree: ast.AST) -> Iterator[ast.Constant]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)
