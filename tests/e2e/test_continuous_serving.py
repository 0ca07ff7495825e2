"""Continuous training ends in delivery: a policy server answers with the champion and no refused challenger."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import json_schemas
import pytest
from homes import Home, wait_for
from test_continuous import SPEC, synthesize

from podrace.cli.continuous import process
from podrace.cli.continuous.journal import read_journal
from podrace.client.policy_server import PolicyServerClient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def folder(home: Home) -> Iterator[Path]:
    """Folder of the training. A process that a failed test left running is killed."""
    path = home.path / "continuous" / "tiny"
    yield path
    if left := process.running(path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left.pid, signal.SIGKILL)


def served(address: str) -> str:
    """Returns the version that a policy server answers with; empty: none yet."""

    async def ask() -> str:
        async with PolicyServerClient(address) as server:
            return (await server.serving()).version

    return asyncio.run(ask())


def test_the_served_policy_is_the_champion_before_and_after_each_verdict(home: Home, folder: Path) -> None:
    prices, spec = home.path.parent / "prices.npz", home.path.parent / "tiny.toml"
    spec.write_text(SPEC.replace("PRICES", str(prices)))
    synthesize(home, prices, seed=1)
    home.published("continuous", "start", str(spec), "--watch", str(prices), "--poll", "0.2s")
    wait_for(lambda: read_journal(folder), what="the journal")

    address = f"unix:{home.path.parent}/serving.sock"
    ports = ("--rest", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--set", "poll_seconds=0.2")
    server = home.start("serve", "tiny", "--listen", address, *ports, "--json")
    facts = json.loads(server.stdout.readline())
    json_schemas.check(["serve"], facts)
    assert facts["version"] == "", "it waits for the first champion"

    def champion() -> str:
        state = read_journal(folder)
        return state.champion.manifest_digest if state and state.champion else ""

    def decided(count: int) -> bool:
        state = read_journal(folder)
        return state is not None and len(state.history) == count

    wait_for(lambda: decided(1), 240, what="the first champion")
    wait_for(lambda: served(address) == champion(), what="the first champion to be served")
    first = champion()
    synthesize(home, prices, seed=2)
    wait_for(lambda: decided(2), 240, what="the verdict on the second version")
    state = read_journal(folder)
    assert state is not None
    challenger = state.history[-1].challenger
    assert challenger is not None
    expected = challenger.manifest_digest if state.history[-1].verdict == "replaced" else first
    assert champion() == expected
    wait_for(lambda: served(address) == expected, what="the champion of the second version to be served")

    home.json("continuous", "stop")
    assert served(address) == expected, "the server needs no mesh"
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0, server.stderr.read()
    assert not home.left_behind()
