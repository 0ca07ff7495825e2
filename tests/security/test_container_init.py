"""Process 1 of an agent pod's container, in a separate process namespace.

Before, process 1 was an init program whose environment, with the token of the pod, every process of its user could
read: an evaluation function in the container of the leader is such a process.
"""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
USER = 61_390
ENVIRONMENT = os.environ | {"PODRACE_AGENTPOD__TOKEN": "secret-0123", "PYTHONPATH": str(REPOSITORY)}
BELOW_INIT = "from podrace.processes import container_init; container_init.run_below_process_1()\n"


def namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces(), reason="this machine makes no process namespaces (unshare --pid)")


def run(code: str) -> "subprocess.CompletedProcess[str]":
    """Runs a program below process 1 of a container."""
    command = [*UNSHARE, sys.executable, "-c", BELOW_INIT + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run processes as other users")
@pytest.mark.parametrize(("below_init", "read"), [(True, False), (False, True)])
def test_the_environment_of_process_1_is_hidden_from_processes_of_its_user(below_init: bool, read: bool) -> None:
    code = f"""
        import os
        if os.fork() == 0:
            assert os.getuid() == {USER}
            try:
                print("secret" in open("/proc/1/environ").read(), flush=True)
            except PermissionError:
                print(False, flush=True)
            os._exit(0)
        os.wait()
    """
    # The user is changed before the program starts: the kernel hides a process that changes its own.
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
    command = [*UNSHARE, *become, sys.executable, "-c", (BELOW_INIT if below_init else "") + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    if "Permission denied" in done.stderr:
        pytest.skip("other users cannot run this Python")
    assert done.stdout.strip() == str(read), done.stderr


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(7)", 7), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)]
)
def test_the_container_stops_as_the_program_does(end: str, status: int) -> None:
    assert run(f"import os, sys\nprint(os.getpid() > 1, flush=True)\n{end}").returncode == status


def test_a_signal_reaches_the_program_and_its_group() -> None:
    code = """
        import os, signal, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        def stop(number, frame):
            print("stopped", child.wait() == -number, flush=True)
            sys.exit(3)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        os.kill(1, signal.SIGTERM)
        time.sleep(100)
    """
    done = run(code)
    assert (done.returncode, done.stdout.split()) == (3, ["ready", "stopped", "True"]), done.stderr


def test_orphans_are_reaped() -> None:
    code = """
        import os, sys
        reading, writing = os.pipe()
        if os.fork() == 0:
            if os.fork() == 0:
                os.close(reading)
                os.write(writing, str(os.getpid()).encode())
                os._exit(0)
            os._exit(0)
        os.wait()
        orphan = int(os.read(reading, 16))
        while os.path.exists(f"/proc/{orphan}"):
            os.sched_yield()
    """
    assert run(code).returncode == 0


def test_elsewhere_the_program_runs_in_its_own_process() -> None:
    code = BELOW_INIT + "import os; print(os.getpid())"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid
