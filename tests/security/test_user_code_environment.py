"""User code runs without the environment of the service that starts it: no key of the store, no token, no key of TLS.

Before, every process that ran user code inherited the whole environment of its service.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from agentpod.config import PodConfig
from agentpod.process import forked_role
from agentpod.process.forked_role import BecomeRole
from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.kubernetes import jobs
from orchestrator.launchers.process.launcher import ProcessLauncher
from orchestrator.launchers.process.local_gpus import LocalGpus
from orchestrator.launchers.process.pod_files import Reservation
from podrace.limits.config import EVERYTHING, NOTHING, Allowed
from podrace.limits.user_environment import leader_variables, role_environment, user_environment
from podrace.plugins.child import ChildConnection
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_FUSED, PodSpec
from simulators import make
from simulators.isaac import client

SECRETS = {
    "PODRACE_STORE_ACCESS_KEY": "hunter2",
    "PODRACE_STORE_SECRET_KEY": "hunter2",
    "PODRACE_STORE_SECRET_KEY_FILE": "/run/hunter2",
    "PODRACE_TOKEN": "hunter2",
    "PODRACE_TOKEN_FILE": "/run/hunter2",
    "PODRACE_TLS_KEY_FILE": "/run/hunter2",
    "PODRACE_ORCHESTRATOR__DATABASE": "hunter2",
}
OF_OTHERS = {
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "GITHUB_TOKEN": "hunter2",
    "KUBERNETES_SERVICE_HOST": "hunter2",
    "CONDA_TOKEN": "hunter2",
    "DATABASE_URL": "hunter2",
}
NEEDED = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/x",
    "CUDA_VISIBLE_DEVICES": "0",
    "OMP_NUM_THREADS": "1",
    "PODRACE_ISAACGYM_PYTHON": "/python",
}


def test_user_code_gets_what_python_and_simulators_need_and_no_secret() -> None:
    assert user_environment({**SECRETS, **OF_OTHERS, **NEEDED}, NOTHING) == NEEDED


def test_the_operator_adds_variables() -> None:
    environ = {"MINE_A": "1", "MINE_B": "2", "DATABASE_URL": "x", **SECRETS}
    found = user_environment(environ, Allowed(variables=("MINE_*", "DATABASE_URL")))
    assert found == {"MINE_A": "1", "MINE_B": "2", "DATABASE_URL": "x"}


def test_the_mesh_of_one_user_passes_all_but_the_variables_of_podrace() -> None:
    assert user_environment({**SECRETS, **OF_OTHERS, **NEEDED}, EVERYTHING) == {**OF_OTHERS, **NEEDED}


def test_only_the_leader_of_a_pod_gets_access_to_the_store() -> None:
    environ = {**SECRETS, **OF_OTHERS, **NEEDED}
    assert role_environment(environ, NOTHING) == {**NEEDED, "PODRACE_TLS_KEY_FILE": "/run/hunter2"}
    leaders = {name: value for name, value in environ.items() if name.startswith("PODRACE_STORE")}
    assert leader_variables(environ, NOTHING) == {**leaders, "AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert leader_variables(environ, EVERYTHING) == leaders


# --- real processes --------------------------------------------------------------------------------------------------

PRINTER = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))
"""


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **OF_OTHERS}.items():
        monkeypatch.setenv(name, value)


async def test_the_process_of_a_plugin_has_no_secret(tmp_path: Path, secrets: None) -> None:
    program, written = tmp_path / "program.py", tmp_path / "environ.json"
    program.write_text(PRINTER)
    connection = ChildConnection(
        [sys.executable, str(program), str(written)],
        {},
        lifeline=tmp_path / "lifeline",
        socket_prefix=tmp_path / "socket",
        start_seconds=60.0,
        allowed=NOTHING,
    )
    connection.start()
    assert connection.process is not None
    assert await connection.process.wait(60.0) == 0
    await connection.close()
    found = json.loads(written.read_text())
    assert "hunter2" not in str(found)
    assert found["PATH"] == os.environ["PATH"]


def test_the_processes_of_a_gymnasium_environment_have_no_secret(
    tmp_path: Path, secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's process reads /proc/self/environ, as user code would."""
    (tmp_path / "leaking.py").write_text(
        "from pathlib import Path\n"
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Leaking(CartPoleEnv):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        Path({str(tmp_path / 'environ')!r}).write_bytes(Path('/proc/self/environ').read_bytes())\n"
        "gymnasium.register(id='Leaking-v0', entry_point='leaking:Leaking', max_episode_steps=10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    simulator = make("leaking:Leaking-v0", 1, {"processes": 1}, allowed=Allowed(modules=("leaking",)))
    simulator.close()
    assert b"PATH=" in (tmp_path / "environ").read_bytes()
    assert b"hunter2" not in (tmp_path / "environ").read_bytes()


def test_the_interpreter_of_isaac_has_no_secret(secrets: None) -> None:
    found = client._environment(NOTHING)
    assert "hunter2" not in str(found)
    assert found["PATH"]


def test_the_fork_server_has_no_key_of_the_store_and_passes_them_on_to_leaders(tmp_path: Path, secrets: None) -> None:
    """Every role inherited the environment of the orchestrator."""
    pod_environment = PodEnvironment("o", "l", "s", tmp_path, tmp_path, "", 60.0, TelemetryConfig())
    launcher = ProcessLauncher(pod_environment, on_death=lambda: None, gpus=LocalGpus(environ={}))
    passed = launcher._forkserver._environ
    assert not [name for name in passed if name.startswith(("PODRACE_STORE", "PODRACE_TOKEN", "AWS_", "GITHUB"))]
    assert passed["PATH"] == os.environ["PATH"]
    spec = PodSpec(layout=LAYOUT_FUSED, workers=1, learners=1, hosts=1, cores=1.0, memory_bytes=1 << 30)
    new = NewPod("p", "t", spec)
    secrets = json.loads(launcher._secrets(new))
    assert secrets["variables"]["PODRACE_STORE_SECRET_KEY"] == "hunter2"
    # Pods have their own tokens.
    assert "PODRACE_TOKEN" not in secrets["variables"]
    # The fork server, whose memory all roles have, reads only this.
    assert "hunter2" not in json.dumps(launcher._request(new, Reservation((0,), (), 0)), default=str)


@pytest.mark.parametrize(("role", "has"), [("learner", True), ("learner-1", False), ("worker-0", False)])
def test_only_the_container_of_the_leader_has_the_keys_of_a_pod_template(role: str, has: bool) -> None:
    """Every container of a pod had the variables of the template."""
    base = {"env": [{"name": "PODRACE_STORE_SECRET_KEY", "value": "hunter2"}, {"name": "OTHER", "value": "x"}]}
    container = jobs._container(base, role, image="", command=role, environment=[], ports=[], resources={})
    names = [each["name"] for each in container["env"]]
    assert ("PODRACE_STORE_SECRET_KEY" in names) is has
    assert "OTHER" in names


@pytest.mark.parametrize(("role", "keeps"), [("learner", True), ("worker-0", False), ("evaluator", False)])
def test_a_forked_role_other_than_the_leader_has_no_key_of_the_store(
    role: str, keeps: bool, tmp_path: Path, secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PODRACE_STORE_ACCESS_KEY")
    pod = PodConfig("p", "unix:/o", "unix:/l", "store", tmp_path)
    secrets = os.memfd_create("secrets")
    os.write(secrets, json.dumps({"token": "t", "variables": {"PODRACE_STORE_ACCESS_KEY": "given"}}).encode())
    prepared = forked_role.prepare(BecomeRole(pod, role, secrets))
    assert (prepared.token == "t") is keeps
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(secrets)
    assert (os.environ.get("PODRACE_STORE_ACCESS_KEY") == "given") is keeps
    assert ("PODRACE_STORE_SECRET_KEY" in os.environ) is keeps
    assert ("AWS_SECRET_ACCESS_KEY" in os.environ) is keeps
    assert keeps or "PODRACE_TOKEN" not in os.environ
