"""Checks of code blocks that run nothing: what each language's parser, or a dry run, can find.

problem = CHECKS[block.language](block.text)    # None, or a line that says what is wrong
"""

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import pytest
import yaml
from doc_blocks import REPOSITORY

from podrace.cli.application import application
from podrace.config import assign, build, read_toml, split_override
from podrace.errors import InvalidArgument
from podrace.specification.resolve import parse, resolve

Problem = str | None

_BASE = {"environment": {"id": "cartpole"}, "objective": {"target_return": 475.0}, "algorithms": {"ppo": {}}}
"""What a fragment of a specification is completed with: tables that it does not have itself."""
_SERVICES = {
    "orchestrator": "orchestrator.config",
    "leaderboard": "leaderboard.config",
    "simulators": "simulators.config",
}
_SEPARATORS = {"|", "&&", "||", ";", "&"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")


def check_toml(text: str) -> Problem:
    """Parses a specification, or a fragment of one, and fills in its defaults; or a configuration with quotas."""
    try:
        values = tomllib.loads(text)
        if "quota" in values:
            build(importlib.import_module(_SERVICES["orchestrator"]).Config, values, source="block")
            return None
        resolve(parse({**_BASE, **_completed(values)}, source="block"))
    except (tomllib.TOMLDecodeError, InvalidArgument) as error:
        return str(error)
    return None


def _completed(values: Mapping[str, Any]) -> dict[str, Any]:
    completed = dict(values)
    if "environment" in values:
        completed["environment"] = {"id": "cartpole", **values["environment"]}
    if "algorithms" in values:
        # Only the command knows what a user-defined algorithm declares: it imports the class in another process.
        named = {name: table for name, table in values["algorithms"].items() if not name.startswith("python:")}
        completed["algorithms"] = named or _BASE["algorithms"]
    return completed


def check_python(text: str) -> Problem:
    """Compiles the block, imports the modules that it imports and looks the imported names up."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return str(error)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            missing = [alias.name for alias in node.names if not _importable(node.module, alias.name)]
            if missing:
                return f"line {node.lineno}: {node.module} has no {', '.join(missing)}"
        elif isinstance(node, ast.Import):
            missing = [alias.name for alias in node.names if importlib.util.find_spec(alias.name) is None]
            if missing:
                return f"line {node.lineno}: there is no module {', '.join(missing)}"
    return None


def _importable(module: str, name: str) -> bool:
    try:
        return (
            hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
        )
    except ModuleNotFoundError:
        return False


def check_yaml(text: str) -> Problem:
    """Parses every document of the block."""
    try:
        list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        return str(error)
    return None


def check_javascript(text: str) -> Problem:
    """Has node parse the block, where node is installed."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run([node, "--check", "-"], input=text, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip() or None


def check_shell(text: str) -> Problem:
    """Checks each command of the block: its syntax, and the command's own arguments by `COMMANDS`."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return done.stderr.strip()
    for line in text.replace("\\\n", " ").splitlines():
        for command in commands_of(line):
            if problem := _check_command(command):
                return f"{shlex.join(command)}: {problem}"
    return None


def commands_of(line: str) -> list[list[str]]:
    """Splits a line of shell into its simple commands, without assignments, redirections and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    tokens = iter(lexer)
    for token in tokens:
        if token in _SEPARATORS:
            commands.append([])
        elif set(token) <= set("<>&"):
            next(tokens, None)
        elif commands[-1] or not _ASSIGNMENT.fullmatch(token):
            commands[-1].append(token)
    return [command for command in commands if command]


def _check_command(command: Sequence[str]) -> Problem:
    name, *arguments = command
    if name not in COMMANDS:
        return f"nothing checks {name!r}; mark the block with `run`, or with `skip` and a reason"
    return COMMANDS[name](arguments)


def _check_podrace(arguments: Sequence[str]) -> Problem:
    """Parses a command line of podrace as click would, and resolves the specification that it names."""
    command: click.Command | None = application
    name, rest = "podrace", list(arguments)
    try:
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            command = command.get_command(click.Context(command), name)
        if command is None:
            return f"there is no command {name!r}"
        return _check_specification(command.make_context(name, rest))
    except click.exceptions.Exit:
        return None
    except click.ClickException as error:
        return error.format_message()


def _check_specification(context: click.Context) -> Problem:
    path = context.params.get("spec")
    if path is None or not str(path).startswith("examples/"):
        return None
    try:
        values = read_toml(REPOSITORY / path)
        for override in context.params.get("overrides", ()):
            assign(values, *split_override(override))
        resolve(parse(values, source=str(path)))
    except InvalidArgument as error:
        return error.message
    return None


def _check_python_command(arguments: Sequence[str]) -> Problem:
    if arguments[:1] == ["-m"]:
        module, *rest = arguments[1:]
        if module in _SERVICES:
            return _check_service(module, rest)
        if module == "pytest":
            return _check_paths(rest)
        return None if importlib.util.find_spec(module) else f"there is no module {module}"
    script, *rest = arguments
    path = REPOSITORY / script
    if not path.is_file():
        return f"there is no {script}"
    sources = [path, *(path.parent.rglob("*.py") if script.startswith("benchmarks/") else [])]
    text = "\n".join(source.read_text() for source in sources)
    unknown = [flag for flag in rest if flag.startswith("--") and f'"{flag.partition("=")[0]}"' not in text]
    return f"{script} has no {', '.join(unknown)}" if unknown else None


def _check_service(module: str, arguments: Sequence[str]) -> Problem:
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if flag == "--print-config":
            continue
        if flag not in ("--set", "--config") or not rest:
            return f"{module} has no argument {flag}"
        argument = rest.pop(0)
        if flag == "--set":
            assign(values, *split_override(argument))
    try:
        build(importlib.import_module(_SERVICES[module]).Config, values, source="block")
    except InvalidArgument as error:
        return None if "missing key" in error.message else error.message
    return None


def _check_make(arguments: Sequence[str]) -> Problem:
    targets = set(re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    unknown = [argument for argument in arguments if "=" not in argument and argument not in targets]
    return f"the Makefile has no target {', '.join(unknown)}" if unknown else None


def _check_paths(arguments: Sequence[str]) -> Problem:
    paths = [argument.partition("::")[0] for argument in arguments if "/" in argument and not argument.startswith("-")]
    missing = [path for path in paths if not (REPOSITORY / path).exists()]
    return f"there is no {', '.join(missing)}" if missing else None


def _check_kubectl(arguments: Sequence[str]) -> Problem:
    if "-k" not in arguments:
        return "only `kubectl ... -k FOLDER` is checked; mark the block with `skip` and a reason"
    folder = REPOSITORY / arguments[list(arguments).index("-k") + 1]
    return None if (folder / "kustomization.yaml").is_file() else f"there is no {folder.name}/kustomization.yaml"


def _accept(arguments: Sequence[str]) -> Problem:
    return None


COMMANDS: Mapping[str, Callable[[Sequence[str]], Problem]] = {
    "podrace": _check_podrace,
    "python": _check_python_command,
    "make": _check_make,
    "pytest": _check_paths,
    "node": _check_paths,
    "kubectl": _check_kubectl,
    "cd": _check_paths,
    "export": _accept,
    "echo": _accept,
}
"""Checks of a command's arguments, by its name."""

CHECKS: Mapping[str, Callable[[str], Problem]] = {
    "toml": check_toml,
    "python": check_python,
    "sh": check_shell,
    "bash": check_shell,
    "yaml": check_yaml,
    "js": check_javascript,
    "javascript": check_javascript,
    "text": lambda text: None,
}
"""Checks of a block, by its language. `text` is output, a folder tree or a diagram."""
