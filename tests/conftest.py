"""Set-up that all tests share: threads, logs, and how tests are spread over processes."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from warm_python import running_warm_python

# Examples take longer while other processes use the processors.
hypothesis.settings.register_profile("podrace", deadline=None)
hypothesis.settings.load_profile("podrace")

# Before anything imports torch: small operations on two threads take many times as long as soon as another process
# wants one of the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# For each connection to a store of groups torch asks for the name of the address. If the answer of the name server is
# lost, it asks again after 5 s by default, which is the limit that tests set for joining a group.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")

# Services that tests start on a port make a token and a key: not those of the user who runs the tests.
_access = tempfile.mkdtemp(prefix="podrace-access-")
atexit.register(shutil.rmtree, _access, ignore_errors=True)
os.environ["PODRACE_TOKEN_FILE"] = f"{_access}/token"

LONG = ("tests/e2e/", "tests/integration/agentpod/", "tests/integration/", "tests/contract/", "tests/unit/agentpod/")
"""Folders in the order in which their tests start: a long test that starts last keeps the whole run waiting."""

LONGEST_ID = 200
"""Most characters of a text that becomes a part of the name of a test."""

WARM = (
    "tests/e2e/",
    "tests/integration/agentpod/",
    "tests/integration/conformance/",
    "tests/integration/leaderboard/test_process.py",
    "tests/integration/orchestrator/",
    "tests/integration/serving/",
    "tests/integration/test_",
    "tests/security/test_limits_of_services.py",
    "tests/security/test_one_machine.py",
    "tests/security/test_runtime_folders.py",
    "tests/security/test_several_machines.py",
    "tests/unit/agentpod/qualification/test_members.py",
)
"""Folders whose tests fork the processes that they start (`forked_processes`)."""


def pytest_configure(config: pytest.Config) -> None:
    """Measures the processor time of each test if `make test-profile` asks for it."""
    if folder := os.environ.get("PODRACE_PROCESSOR_TIMES"):
        from processor_times import ProcessorTimes, Summary

        in_worker = hasattr(config, "workerinput")
        if in_worker or not config.getoption("numprocesses", None):
            config.pluginmanager.register(ProcessorTimes(Path(folder)))
        if not in_worker:
            config.pluginmanager.register(Summary(Path(folder)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many processes as there are processors, and two more: many tests wait for processes that they started."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes the tests as tests/fixtures/distribution.py says."""
    from distribution import Distribution

    return Distribution(config, log)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Shortens the names of tests whose parameter is a long text: each is sent several times for every test."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_ID:
        return f"{argname} of {len(val)}"
    return None


ONE_PROCESS = {"running_s3": "s3", "node_program": "node"}
"""Fixtures whose tests share one process, with the name of the group: an S3 server takes much memory, and every process
would fetch the packages of Node.js again."""
ONE_PROCESS_FILES = {
    "simulators/test_contract.py": "simulators",
    "simulators/isaac/test_client.py": "isaac",
    "simulators/test_remote.py": "remote",
    "simulators/test_remote_contract.py": "remote",
    "populations/test_pb2.py": "scikit-learn",
    "client/test_importance.py": "scikit-learn",
    "simulators/test_envpool.py": "envpool",
    "security/test_plugin_users.py": "users of plugins",
}
"""Likewise for files: each simulator, and the service, is started once, a large library is imported once, and one test
at a time kills the processes of a user."""


def pytest_collection() -> None:
    """The garbage collection pauses: modules and tests stay, so looking for garbage among them takes time only."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on, the garbage collector examines only objects that tests create."""
    gc.freeze()
    gc.enable()


# Before xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests start first; tests that share what takes long to make run in one process."""
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_start_order)


def _group(item: pytest.Item) -> str:
    if "warp" in item.nodeid and "simulators/" in item.nodeid:
        # Several processes would compile the same kernels of MuJoCo Warp.
        return "warp"
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in ONE_PROCESS:
            return ONE_PROCESS[fixture]
    if "weed" in vars(getattr(item, "module", None) or object):
        return "s3"
    return next((group for file, group in ONE_PROCESS_FILES.items() if item.path.as_posix().endswith(file)), "")


def _start_order(item: pytest.Item) -> int:
    path = item.path.relative_to(item.config.rootpath).as_posix()
    return next((order for order, folder in enumerate(LONG) if path.startswith(folder)), len(LONG))


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """A program that behaves as this interpreter, and forks processes of the project instead of starting them.

    Starting the processes of a mesh costs 5 processor seconds, most of them for importing torch twice. With
    PODRACE_TESTS_COLD=yes, and on other systems than Linux, it is the interpreter.
    """
    if os.environ.get("PODRACE_TESTS_COLD") or not hasattr(os, "pidfd_open"):
        yield sys.executable
        return
    with running_warm_python() as program:
        yield program


@pytest.fixture(autouse=True)
def forked_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests of WARM fork the processes that they start, unless they are marked `cold`."""
    path = request.node.path.relative_to(request.config.rootpath).as_posix()
    if path.startswith(WARM) and not request.node.get_closest_marker("cold"):
        monkeypatch.setattr(sys, "executable", request.getfixturevalue("warm_python"))


@pytest.fixture(autouse=True)
def logs_as_they_come() -> Iterator[None]:
    """The log configuration of a test ends with the test."""
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


@pytest.fixture
def log_lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """What this process logs during the test: one dictionary per line, with the message as `event`, `log_level`,
    the keys of the call, and the ids that are bound (`agent_id`, `tournament_id`).

    The pod of tests/integration/agentpod/test_log.py is an example. A child process has its own log.
    """
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that need a GPU where PyTorch sees none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
