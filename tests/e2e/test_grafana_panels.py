"""Every panel of the Grafana dashboards returns series from a Prometheus that scrapes a mesh at work."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from homes import REPOSITORY, Home, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.cold, pytest.mark.timeout(300)]
COMPOSE = REPOSITORY / "deploy/compose"
SECONDS = 120.0
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def configuration(orchestrator: int, leaderboard: int) -> dict[str, Any]:
    """The configuration of Compose with the addresses of this mesh, a shorter period, and no policy servers."""
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    found["global"]["scrape_interval"] = "1s"
    del found["rule_files"]
    jobs = {job["job_name"]: job for job in found["scrape_configs"]}
    del jobs["services"]["dns_sd_configs"]
    jobs["services"]["static_configs"] = [{"targets": [f"127.0.0.1:{orchestrator}", f"127.0.0.1:{leaderboard}"]}]
    (discovery,) = jobs["pods"]["http_sd_configs"]
    discovery |= {"url": f"http://127.0.0.1:{orchestrator}/pods", "refresh_interval": "1s"}
    found["scrape_configs"] = [jobs["services"], jobs["pods"]]
    return found


@contextlib.contextmanager
def prometheus(config: dict[str, Any]) -> Iterator[str]:
    """Runs a Prometheus, and yields its URL."""
    program, port = shutil.which("prometheus"), free_port()
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    with tempfile.TemporaryDirectory(prefix="podrace-prometheus-") as name:
        (Path(name) / "prometheus.yaml").write_text(yaml.safe_dump(config))
        options = (f"--config.file={name}/prometheus.yaml", f"--storage.tsdb.path={name}/data")
        listen = f"--web.listen-address=127.0.0.1:{port}"
        process = subprocess.Popen([program, *options, listen], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def panels() -> dict[str, str]:
    """The expressions of all panels by dashboard and title."""
    found = {}
    for path in sorted((COMPOSE / "grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for number, target in enumerate(panel["targets"]):
                expression = re.sub(r"\$(tournament|pod)\b", ".*", target["expr"]).replace("$__rate_interval", "10s")
                found[f"{path.stem}: {panel['title']} {number}"] = expression
    return found


def series(url: str, expression: str) -> list[Any]:
    """The series that Prometheus returns now, without those that are no number."""
    query = urllib.parse.urlencode({"query": expression})
    with OPEN(f"{url}/api/v1/query?{query}", timeout=10) as response:
        result = json.load(response)["data"]["result"]
    return [one for one in result if one["value"][1] != "NaN"]


def test_every_panel_returns_series(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_port(), free_port()
    for program, port in zip(("ORCHESTRATOR", "LEADERBOARD"), ports, strict=True):
        monkeypatch.setenv(f"PODRACE_{program}__TELEMETRY__METRICS_LISTEN", f"127.0.0.1:{port}")
    missing = panels()
    assert len(missing) > 30
    with prometheus(configuration(*ports)) as url:
        process = home.start("train", str(home.spec('wall_clock_duration = "3m"', pool="maximum_pods = 1")))

        def ask() -> bool:
            assert process.poll() is None, process.communicate()[1]
            with contextlib.suppress(OSError):
                for name in [name for name, expression in missing.items() if series(url, expression)]:
                    del missing[name]
            return not missing

        try:
            wait_for(ask, SECONDS, what="series")
        except AssertionError:
            pytest.fail(f"panels without series: {missing}")
        finally:
            process.terminate()
            process.wait(60)
