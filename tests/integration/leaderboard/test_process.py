"""The leaderboard as a process: how it starts, how it refuses to, how it dies, and what is left then."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podrace import rpc
from podrace.backup.archives import Archives, json_lines
from podrace.checkpoint_store.folder import FolderStore
from podrace.errors import NotFound, PodraceError, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.processes import lifeline

TOURNAMENT = "cartpole-abc123"
START_SECONDS = 20.0
Process = asyncio.subprocess.Process
Start = Callable[..., Awaitable[Process]]


async def refusal(process: Process) -> str:
    """What a process says that would not start: one line, no traceback."""
    _, stderr = await asyncio.wait_for(process.communicate(), START_SECONDS)
    assert process.returncode == 2
    lines = [line for line in stderr.decode().splitlines() if line and "add_port.cc" not in line]  # that is gRPC's own
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


async def test_no_acknowledged_candidate_is_lost_when_it_is_killed(start: Start, connect: Any) -> None:
    process = await start()
    client = await connect()
    agents = [await client.generate(number) for number in range(8)]
    requests = [client.publish(agents[number % 8], float(number)) for number in range(160)]
    acknowledged: dict[str, pb.SubmitCandidateResponse] = {}

    async def learner(own: list[pb.SubmitCandidateRequest]) -> None:
        for request in own:
            try:
                answer = await rpc.call(client.updater.SubmitCandidate, request, deadline_seconds=1.0)
            except PodraceError:
                return
            acknowledged[request.checkpoint.manifest_digest] = answer
            if len(acknowledged) == 60:
                os.kill(process.pid, signal.SIGKILL)

    await asyncio.gather(*(learner(requests[number::8]) for number in range(8)))
    await process.wait()
    assert 60 <= len(acknowledged) < 160
    await client.channel.close()

    await start()
    client = await connect()
    recorded = {candidate.candidate_id for candidate in await client.candidates(all_submissions=True)}
    assert recorded >= acknowledged.keys()
    for request in requests:
        answer = await client.call(client.updater.SubmitCandidate, request)
        assert answer == acknowledged.get(request.checkpoint.manifest_digest, answer)
    sequences = [candidate.sequence for candidate in await client.candidates(all_submissions=True)]
    assert sequences == list(range(1, 161))
    assert await client.generate(3) == agents[3]
    replayed = await client.call(client.reading.ReplayTournament, pb.ReplayTournamentRequest(tournament_id=TOURNAMENT))
    assert list(replayed.differences) == []
    await client.channel.close()


async def test_a_signal_ends_it_with_success_and_its_watchers_with_it(start: Start, connect: Any) -> None:
    process = await start()
    client = await connect()
    await client.submit(await client.generate(0), 1.0)
    request = pb.WatchCandidatesRequest(tournament_id=TOURNAMENT)
    responses = rpc.stream(client.reading.WatchCandidates, request, deadline_seconds=None)
    assert (await anext(responses)).candidate.score == 1.0
    process.terminate()
    # The client may notice that the connection is closed before it has read why.
    with pytest.raises(Unavailable, match=r"watch again with the last resume_token|closed the connection"):
        await anext(responses)
    assert await asyncio.wait_for(process.wait(), 5.0) == 0
    await client.channel.close()


async def test_it_exits_when_its_lifeline_is_lost(start: Start, connect: Any, folder: Path) -> None:
    with lifeline.hold(folder / "mesh.lifeline"):
        process = await start(lifeline=folder / "mesh.lifeline")
        await (await connect()).channel.close()
        assert process.returncode is None
    assert await asyncio.wait_for(process.wait(), 5.0) == 0


async def test_a_second_instance_on_the_same_database_is_refused(start: Start, connect: Any, folder: Path) -> None:
    await start()
    await (await connect()).channel.close()
    second = await start(server__listen=f"unix:{folder}/second.sock")
    assert "leaderboard.sqlite: another leaderboard has it open; stop it" in await refusal(second)


async def test_a_corrupted_database_is_refused(start: Start, folder: Path) -> None:
    (folder / "leaderboard.sqlite").write_bytes(b"this is no database" * 1000)
    assert "leaderboard.sqlite: is damaged: file is not a database" in await refusal(await start())


async def test_a_store_that_cannot_be_made_is_refused(start: Start, folder: Path) -> None:
    (folder / "file").touch()
    assert f"checkpoint store {folder}/file: File exists" in await refusal(await start(store=folder / "file"))


async def test_an_unknown_setting_is_refused_with_the_nearest_known(start: Start) -> None:
    assert "unknown key 'databse'; did you mean 'database'?" in await refusal(await start(databse="x"))


async def test_an_address_that_is_in_use_is_refused(start: Start, connect: Any, folder: Path) -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    process = await start(server__listen=f"127.0.0.1:{port}")
    assert f"cannot listen on 127.0.0.1:{port}" in await refusal(process)
    listener.close()


async def test_an_unreachable_store_fails_submissions_and_not_the_service(
    start: Start, connect: Any, store: FolderStore, folder: Path
) -> None:
    await start()
    client = await connect()
    agent = await client.generate(0)
    request = client.publish(agent, 1.0)
    shutil.move(folder / "store", folder / "elsewhere")
    with pytest.raises(NotFound, match="no checkpoint was published in"):
        await client.call(client.updater.SubmitCandidate, request)
    shutil.move(folder / "elsewhere", folder / "store")
    assert (await client.call(client.updater.SubmitCandidate, request)).candidate.rank == 1
    await client.channel.close()


async def test_garbage_is_collected_while_it_serves(start: Start, connect: Any, store: FolderStore) -> None:
    # The grace is longer than a checkpoint takes from its first file to its submission.
    await start(collect_period_seconds=0.05, collect_grace_seconds=1.0)
    client = await connect()
    agent = await client.generate(0)
    best = await client.submit(agent, 9.0)
    refused = [await client.submit(agent, float(score)) for score in range(4)]
    gone = refused[0].candidate_id  # neither on the board, nor what the pointer names, nor its predecessor

    async def until_gone() -> None:
        while gone in {stored.digest for stored in store.list_objects()}:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(until_gone(), 10.0)
    assert best.candidate_id in {stored.digest for stored in store.list_objects()}
    await client.channel.close()


@pytest.mark.cold
async def test_an_archive_that_a_stopped_process_interrupts_is_complete_or_absent(
    start: Start, connect: Any, store: FolderStore
) -> None:
    process = await start()
    client = await connect()
    agent = await client.generate(0)
    await client.call(client.updater.SubmitCandidate, client.publish(agent, 1.0))
    records = json_lines([{"record": "event", "kind": "tournament_created"}])

    def pieces(*, stop: bool) -> Iterator[pb.ArchiveTournamentRequest]:
        yield pb.ArchiveTournamentRequest(tournament_id=TOURNAMENT, records=records[:10])
        if stop:
            os.kill(process.pid, signal.SIGSTOP)
        yield pb.ArchiveTournamentRequest(tournament_id=TOURNAMENT, records=records[10:])

    try:
        # The orchestrator gets an error, so it deletes nothing.
        with pytest.raises(PodraceError):
            await rpc.send(client.updater.ArchiveTournament, pieces(stop=True), deadline_seconds=0.5)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    for archived in Archives(store).list():
        assert Archives(store).read(archived.tournament_id)["orchestrator.jsonl.gz"] == records
    await rpc.send(client.updater.ArchiveTournament, pieces(stop=False), deadline_seconds=START_SECONDS)
    assert Archives(store).read(TOURNAMENT)["orchestrator.jsonl.gz"] == records
