"""Checks the names in a specification against what the operator allows: environment ids, options, addresses. Pure.

    if problem := environment_problem(id, options, allowed):
        raise InvalidArgument(problem)

A problem is one line with the key of the specification, its value, and the setting of the operator.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from podrace.limits.addresses import is_metadata
from podrace.limits.config import MODULE, Allowed
from podrace.limits.urls import is_url, url_problem
from podrace.plugins.address import EXPECTED, GrpcService, PythonFunction, parse

SERVICE, FUNCTION, ISAAC = "grpc://", "python:", ("isaacgym:", "isaaclab:")
OWN_FAMILIES = ("mujoco:", "warp:", "envpool:", "atari:", "matrix:", "game:")
"""Prefixes of ids that make environments of this package, from names that it knows."""
GYMNASIUM, PETTINGZOO = "gym:", "pettingzoo:"
IMPORTING_IDS = ("GymV21Environment-v0", "GymV26Environment-v0")
"""Gymnasium ids whose options name another environment, which may import a module."""
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_GYMNASIUM_NAME = re.compile(r"(?:[\w-]+/)?\w[\w.-]*", re.ASCII)
"""As Gymnasium registers them: a namespace may come first, as in `ALE/Breakout-v5`."""
_EXPECTED_NAME = "expected a name of letters, digits, '_', '-' and '.'; podrace simulators lists what there is"
INTERPRETER = "interpreter"
"""The option of `isaacgym:` and `isaaclab:` that says which program to start."""
DATA = {"stocks": "path"}
"""The option that names a file of data, by simulator. Other options of these simulators name no files."""
WRAPPERS = "wrappers"
SYNTHETIC = "synthetic:"
_SETTING = "the setting of its operator is "
_SHOWN_CHARACTERS = 100


def environment_problem(
    id: str,
    options: Mapping[str, object],
    allowed: Allowed,
    *,
    id_key: str = "environment.id",
    options_key: str = "environment.options",
) -> str:
    """Returns why an environment is not allowed; empty if it is.

    Args:
        id: As in the specification.
        options: Options of the simulator, as plain values.
        allowed: What the operator allows.
        id_key: Key of the id, for the message.
        options_key: Key of the options, for the message.
    """
    if problem := id_problem(id, allowed):
        return f"{id_key} = {shown(id)}: {problem}"
    return options_problem(id, options, allowed, options_key)


def id_problem(id: str, allowed: Allowed) -> str:
    """Returns why an environment id is not allowed, without its key; empty if it is."""
    if id.startswith(SERVICE):
        return service_problem(id.removeprefix(SERVICE), allowed)
    if not _is_name(id):
        return _EXPECTED_NAME
    if allowed.everything:
        return ""
    if id.startswith(FUNCTION):
        return plugin_problem(id, allowed)
    if id.startswith(ISAAC):
        return "" if allowed.isaac else f"{id.partition(':')[0]} is not allowed here; {_SETTING}allow.isaac"
    if id.startswith(OWN_FAMILIES):
        return ""
    if id.startswith(PETTINGZOO):
        module, _, name = id.removeprefix(PETTINGZOO).partition(":")
        return module_problem(module, name, allowed)
    module, _, name = id.removeprefix(GYMNASIUM).rpartition(":")
    if name in IMPORTING_IDS:
        return "its options can import any module, so it is not allowed here"
    return module_problem(module, "", allowed) if module else ""


def _is_name(id: str) -> bool:
    """Whether an id of this package or of Gymnasium can be one, so that no path is looked up among their names."""
    if id.startswith((FUNCTION, *ISAAC, PETTINGZOO)):
        return True
    pattern = _NAME if id.startswith(OWN_FAMILIES) else _GYMNASIUM_NAME
    return bool(pattern.fullmatch(id.rpartition(":")[2]))


def imported_module(id: str) -> str:
    """Returns the module that an environment id makes the process of a simulator import; empty if it names none."""
    if id.startswith(FUNCTION):
        found = parse(id)
        return found.module if isinstance(found, PythonFunction) else ""
    if id.startswith((SERVICE, *ISAAC, *OWN_FAMILIES)):
        return ""
    if id.startswith(PETTINGZOO):
        return id.removeprefix(PETTINGZOO).partition(":")[0]
    return id.removeprefix(GYMNASIUM).rpartition(":")[0]


def plugin_problem(address: str, allowed: Allowed) -> str:
    """Returns why the address of a plugin is not allowed, without its key; empty if it is."""
    found = parse(address)
    if isinstance(found, GrpcService):
        return service_problem(found.target, allowed)
    if allowed.everything:
        return ""
    return module_problem(found.module, found.name, allowed) if isinstance(found, PythonFunction) else EXPECTED


def module_problem(module: str, function: str, allowed: Allowed) -> str:
    """Returns why a module, or a function of it, is not allowed; empty if it is."""
    if allowed.everything:
        return ""
    for entry in allowed.modules:
        found = MODULE.fullmatch(entry)
        if found is None or (found["function"] and found["function"] != function):
            continue
        if module == found["module"] or (found["inner"] and module.startswith(f"{found['module']}.")):
            return ""
    return f"module {shown(module)} is not allowed here; {_SETTING}allow.modules"


def service_problem(target: str, allowed: Allowed) -> str:
    """Returns why a service at `host:port` or `unix:/path` is not allowed; empty if it is."""
    host, _, port = target.rpartition(":")
    if not target.startswith("unix:") and is_metadata(host):
        return "credentials of machines are at this address, which is never called"
    if allowed.everything or any(_is_service(target, host, port, entry) for entry in allowed.services):
        return ""
    return f"this service is not allowed here; {_SETTING}allow.services"


def _is_service(target: str, host: str, port: str, entry: str) -> bool:
    if entry.startswith("unix:"):
        folder = entry.removesuffix("*")
        inside = target.startswith(folder) and ".." not in PurePosixPath(target).parts
        return target == entry or (entry.endswith("/*") and inside)
    listed_host, _, listed_port = entry.rpartition(":")
    return host.lower() == listed_host.lower() and listed_port in ("*", port) and not target.startswith("unix:")


# --- options -----------------------------------------------------------------------------------------------------


def options_problem(id: str, options: Mapping[str, object], allowed: Allowed, key: str = "environment.options") -> str:
    """Returns which option is not allowed, and why; empty if all are.

    Options of a service at `grpc://` are the service's to check. Wrappers run here, whatever the environment.
    """
    if problem := _wrappers_problem(options, allowed, key):
        return problem
    if id in DATA:
        value = options.get(DATA[id], "")
        problem = data_problem(value, allowed) if isinstance(value, str) else ""
        return f"{key}.{DATA[id]} = {shown(value)}: {problem}" if problem else ""
    if allowed.everything or id.startswith(SERVICE):
        return ""
    if id.startswith(ISAAC) and INTERPRETER in options:
        return f"{key}.{INTERPRETER} = {shown(options[INTERPRETER])}: only the operator names programs"
    for name, text in texts_of({name: value for name, value in options.items() if name != WRAPPERS}):
        if problem := text_problem(text, allowed):
            return f"{key}.{name} = {shown(text)}: {problem}"
    return ""


def _wrappers_problem(options: Mapping[str, object], allowed: Allowed, key: str) -> str:
    """Returns why what wrappers name is not allowed; a wrapper of a user may take a text for the path of a file."""
    addresses = wrapper_addresses(options)
    for name, text in _texts_of_wrappers(options) if addresses else ():
        problem = plugin_problem(text, allowed) if text.startswith(FUNCTION) else ""
        if not text.startswith(FUNCTION) and not allowed.everything:
            problem = text_problem(text, allowed)
        if problem:
            return f"{key}.{name} = {shown(text)}: {problem}"
    return ""


def wrapper_addresses(options: Mapping[str, object]) -> list[str]:
    """Returns the addresses of the code of users that the wrappers in some options name."""
    return [text for _, text in _texts_of_wrappers(options) if text.startswith(FUNCTION)]


def _texts_of_wrappers(options: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields the texts of wrappers, also where an option of one of them is searched: `wrappers.0.function`."""
    yield from texts_of({name: one for name, one in options.items() if name.partition(".")[0] == WRAPPERS})


def texts_of(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted key and the text of every text in nested tables and lists."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts_of(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from texts_of(item, f"{path}.{number}")


def data_problem(path: str, allowed: Allowed) -> str:
    """Returns why a source of data is not allowed; empty if it is."""
    if not path or path.startswith(SYNTHETIC):
        return ""
    if is_url(path):
        return url_problem(path, allowed)
    if root_of(path, allowed):
        return relative_problem(path.partition(":")[2])
    if allowed.everything:
        return ""
    return f"files are named as ROOT:PATH here ({_roots(allowed)}); {_SETTING}allow.data_roots"


def text_problem(text: str, allowed: Allowed) -> str:
    """Returns why an option of an unknown meaning is not allowed; empty if it cannot be a path or is below a root.

    The option of a Gymnasium environment, or of the factory of a user, may be the path of a file. Without `/` at most a
    file of the working directory of the process can be meant.
    """
    if root_of(text, allowed):
        return relative_problem(text.partition(":")[2])
    if "/" in text or "\\" in text or "\0" in text or text.startswith(("~", ".")):
        return data_problem(text, replace(allowed, url_hosts=()))
    return ""


def root_of(text: str, allowed: Allowed) -> str:
    """Returns the data root that a text begins with, as in `prices:us/daily.csv`; empty if it names none."""
    name, colon, _ = text.partition(":")
    return name if colon and name in allowed.data_roots else ""


def relative_problem(path: str) -> str:
    """Returns what is wrong with a path below a data root; empty if nothing is."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or re.search(r"[\0-\x1f\\]", path):
        return "expected ROOT:PATH, with a path below the folder, without '..'"
    return ""


def with_id(allowed: Allowed, id: str) -> Allowed:
    """Returns what is allowed, extended by one environment id that the operator has allowed in another way."""
    if id.startswith(SERVICE):
        return replace(allowed, services=(*allowed.services, id.removeprefix(SERVICE)))
    if id.startswith(ISAAC):
        return replace(allowed, isaac=True)
    found = parse(id)
    if isinstance(found, PythonFunction):
        return replace(allowed, modules=(*allowed.modules, f"{found.module}:{found.name}"))
    module = "" if id.startswith((FUNCTION, *OWN_FAMILIES)) else id.removeprefix(GYMNASIUM).rpartition(":")[0]
    return replace(allowed, modules=(*allowed.modules, module)) if module else allowed


def shown(value: object) -> str:
    """Returns a value for a message, shortened, with control characters escaped."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _roots(allowed: Allowed) -> str:
    return f"roots: {', '.join(sorted(allowed.data_roots))}" if allowed.data_roots else "there are no roots"
