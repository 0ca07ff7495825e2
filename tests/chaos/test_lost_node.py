"""The fault `absent` stops the kubelet until the cluster has noticed it, and lets it continue in any case."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import engine_target
import pytest
from chaos_faults import Fault
from engine_target import ClusterTarget

ABSENT = Fault(0.0, "absent", "node", 0.0)


class Cluster(ClusterTarget):
    """A cluster that answers with the state of its kubelet, or that never notices it."""

    def __init__(self, kubelet: int, *, notices: bool) -> None:
        self._kubelet, self._notices = kubelet, notices
        self.seen: list[str] = []

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        state = Path(f"/proc/{self._kubelet}/stat").read_text().rpartition(")")[2].split()[0]
        # A cluster needs a while.
        noticed = self._notices and state == "T" and self.seen[-2:] == ["T", "T"]
        self.seen.append(state)
        return "Unknown" if noticed else "True"


@pytest.fixture
def kubelet(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(engine_target, "kubelets", lambda: [process.pid])
    monkeypatch.setattr(engine_target, "NODE_SECONDS", 2.0)
    yield process
    process.send_signal(signal.SIGKILL)
    process.wait()


def continues(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"


def test_the_kubelet_is_stopped_until_its_node_is_not_ready(kubelet: subprocess.Popen[bytes]) -> None:
    cluster = Cluster(kubelet.pid, notices=True)
    cluster.inject_own(ABSENT)
    assert cluster.seen[-3:] == ["T", "T", "T"]
    assert continues(kubelet)


def test_a_node_that_stays_ready_is_an_error_and_its_kubelet_continues(kubelet: subprocess.Popen[bytes]) -> None:
    with pytest.raises(AssertionError, match="a node that is not ready: not within 2 s"):
        Cluster(kubelet.pid, notices=False).inject_own(ABSENT)
    assert continues(kubelet)
