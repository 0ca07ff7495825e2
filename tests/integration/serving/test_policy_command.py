"""`podrace policy` and its client change which versions a live policy server answers with."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import json_schemas
import pytest
from policy_world import PolicyWorld, act, name, observation

from podrace.client.policy_server import PolicyServerClient, every_address, named_version
from podrace.errors import Aborted, InvalidArgument, NotFound, Unavailable
from podrace.policy.v1.policy_service_pb2 import RefusedVersion, Serving

SECONDS = 120.0


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[PolicyWorld]:
    """A server whose folder had version 1 and has version 2."""
    made = await PolicyWorld.start(tmp_path)
    made.export(2)
    await made.follower.poll()
    yield made
    await made.close()


async def typed(world: PolicyWorld, *arguments: str) -> tuple[int, str, str]:
    """Runs `podrace policy ARGUMENTS` for the server."""
    command = (sys.executable, "-m", "podrace.cli", "policy", *arguments, "--server", world.server.address)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, log = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode or 0, printed.decode(), log.decode()


async def changed(world: PolicyWorld, *arguments: str) -> Any:
    """Runs a command with --json, compares the output with its schema, and returns the state of the one server."""
    code, printed, log = await typed(world, *arguments, "--json")
    assert code == 0, log
    listed = json.loads(printed)
    json_schemas.check(["policy", *arguments], listed)
    (found,) = listed
    return found


async def test_an_operator_rolls_back_pins_compares_and_follows_again(world):
    before = await changed(world, "show")
    assert (before["version"], before["previous_versions"], before["pinned"]) == (name(2), [name(1)], False)
    assert (await changed(world, "rollback", "--from", name(2)))["version"] == name(1)
    await world.follower.poll()
    assert (await act(world.stub(), observation())).version == name(1), (
        "the version that was rolled back is not offered"
    )

    pinned = await changed(world, "pin", name(2))
    assert (pinned["version"], pinned["pinned"], pinned["refused"]) == (name(2), True, [])
    world.export(3)
    await world.follower.poll()
    assert (await act(world.stub(), observation())).version == name(2), "a pinned version stays"

    compared = await changed(world, "compare", name(1), "--share", "1")
    assert compared["comparison"] == {"version": name(1), "share": 1.0, "shadow": False}
    assert (await act(world.stub(), observation())).version == name(1), "all of the requests"
    assert (await changed(world, "compare", "--end"))["comparison"] is None

    assert not (await changed(world, "follow"))["pinned"]
    await world.follower.poll()
    assert (await act(world.stub(), observation())).version == name(3)


async def test_the_table_names_what_serves_and_mistakes_are_reported_in_one_line(world):
    code, printed, _ = await typed(world, "show")
    assert code == 0
    assert name(2)[:16] in printed
    assert str(world.folder) in printed
    for arguments, message in (
        (("pin", "champion"), "expected the digest of a manifest"),
        (("pin", "abcdef12"), "the server lists none that begins so"),
        (("compare", name(1)), "either --share, above 0, or --shadow"),
        (("compare", name(2), "--shadow"), "there is no other version to compare it with"),
        (("rollback", "--from", name(1)), "serves now"),
    ):
        code, printed, log = await typed(world, *arguments)
        assert (code != 0, printed) == (True, ""), arguments
        assert message in log
        assert len(log.splitlines()) == 1, log


async def test_a_client_of_the_api_that_read_an_older_state_changes_nothing(world):
    async with PolicyServerClient(world.server.address) as server:
        assert (await server.describe()).version == name(2)
        with pytest.raises(Aborted, match="read again"):
            await server.roll_back(name(1))
        assert (await server.start_comparison(name(1), shadow=True)).comparison.shadow
        assert not (await server.end_comparison()).HasField("comparison")


SERVING = Serving(
    version="a" * 64, previous_versions=["b" * 64, "bbbbbbbb" + "c" * 56], refused=[RefusedVersion(version="d" * 64)]
)


def test_a_version_is_named_by_its_digest_or_by_the_beginning_of_one_that_is_listed():
    assert named_version(SERVING, "e" * 64) == "e" * 64, "a checkpoint that the server has not loaded"
    assert named_version(SERVING, "d" * 12) == "d" * 64
    with pytest.raises(InvalidArgument, match="write more of it"):
        named_version(SERVING, "bbbbbb")
    with pytest.raises(NotFound):
        named_version(SERVING, "ffffff")
    for text in ("aaaa", "A" * 64, "latest", "a" * 65, ""):
        with pytest.raises(InvalidArgument, match="expected the digest"):
            named_version(SERVING, text)


def test_every_address_of_a_name_is_that_of_one_replica():
    assert every_address("127.0.0.1:8001") == ["127.0.0.1:8001"]
    assert "127.0.0.1:8001" in every_address("localhost:8001")
    assert every_address("[::1]:8001") == ["[::1]:8001"]
    with pytest.raises(InvalidArgument, match="host:port"):
        every_address("podrace-serving")
    with pytest.raises(Unavailable, match="check the name"):
        every_address("nowhere.invalid:8001")
