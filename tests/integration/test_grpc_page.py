"""The programs of docs/grpc.md in JavaScript, with an orchestrator and a leaderboard as the page starts them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PROTOS = REPOSITORY / "protos"
DEADLINE_SECONDS = 100


def blocks() -> tuple[dict[str, str], str]:
    """The files of the page by name, and the commands that it runs."""
    page = (REPOSITORY / "docs/grpc.md").read_text()
    files = re.findall(r"<!-- docs-test: file (\S+) -->\n```\w+\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (commands,) = re.findall(r"<!-- docs-test: run -->\n```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return dict(files), commands


def test_the_client_and_the_generator_in_javascript_work(node_program: Callable[[Path], Path], tmp_path: Path) -> None:
    files, commands = blocks()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shutil.copy(REPOSITORY / "examples/custom/generator-node/package.json", tmp_path)
    commands = commands.replace("python generator.py", f"node generator.js {PROTOS}")
    commands += f"node client.js {PROTOS} unix:$PWD/o.sock\n"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=node_program(tmp_path),
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"agent_generated .*-a1: grpc://unix:.*: near the best; child of a0", done.stdout)
    *_, newest, first, second, third = done.stdout.splitlines()
    assert re.fullmatch(r"cartpole-\w{6} TOURNAMENT_STATE_COMPLETED: environment steps: .*", newest)
    # The client in Python has printed the same candidates before.
    assert done.stdout.count(f"{first}\n{second}\n{third}\n") == 2
    assert re.fullmatch(r"1\. cartpole-\w{6}-a\d+: [\d.]+ ± [\d.]+", first)
