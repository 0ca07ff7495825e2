"""Tests servers, channels and the translation of errors over real sockets."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from podrace import errors, rpc
from podrace.access.credentials import NoListener
from podrace.access.guard import Guard
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.rpc import channel as channel_settings
from podrace.tensor.v1 import tensor_pb2 as tensor_pb
from podrace.tensor.v1 import tensor_pb2_grpc as tensor_grpc

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Board(pb_grpc.LeaderboardServiceServicer):
    """Raises the given error; counts calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = 0

    async def GetAgent(self, request, context):
        self.calls += 1
        if self.error:
            raise self.error
        return pb.GetAgentResponse(agent=pb.Agent(agent_id=request.agent_id))

    async def WatchCandidates(self, request, context):
        for sequence in range(3):
            yield pb.WatchCandidatesResponse(resume_token=sequence)
        if self.error:
            raise self.error


class Tensors(tensor_grpc.TensorServiceServicer):
    """Counts the chunks that arrive."""

    async def WriteTensors(self, requests, context):
        count = 0
        async for _ in requests:
            count += 1
        return tensor_pb.WriteTensorsResponse(size_bytes=count)


def service(board: Board) -> rpc.Service:
    descriptor = pb.DESCRIPTOR.services_by_name["LeaderboardService"]
    return rpc.Service(descriptor, pb_grpc.add_LeaderboardServiceServicer_to_server, board)


async def start(board: Board, **config) -> rpc.Server:
    return await rpc.Server.start(
        rpc.ServerConfig(**{"grace_seconds": 0, **config}), [service(board)], guard=Guard.of_anyone()
    )


def stub(channel):
    return pb_grpc.LeaderboardServiceStub(channel)


@pytest.mark.parametrize("kind", errors.BY_CODE.values())
async def test_every_error_arrives_as_the_class_that_was_raised(kind):
    server = await start(Board(kind("what, where and what to do", reason="ERROR_REASON_STALE_EPOCH")))
    async with rpc.connect(server.address) as channel:
        with pytest.raises(kind) as caught:
            await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(), deadline_seconds=5)
    assert caught.value.message == "what, where and what to do"
    assert caught.value.reason == "ERROR_REASON_STALE_EPOCH"
    await server.drain()


@pytest.mark.parametrize("letter", ["x", "é", "漢", "%", "\n"])
async def test_a_long_message_is_cut_and_keeps_its_code_and_its_reason(letter):
    server = await start(Board(errors.DataLoss(letter * 9000, reason="ERROR_REASON_NON_FINITE")))
    async with rpc.connect(server.address) as channel:
        for _ in range(20):
            with pytest.raises(errors.DataLoss) as caught:
                await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(), deadline_seconds=5)
            kept = rpc.LONGEST_MESSAGE_BYTES // len(letter.encode())
            assert caught.value.message == letter * kept + "..."
            assert caught.value.reason == "ERROR_REASON_NON_FINITE"
    await server.drain()


async def test_a_bug_arrives_as_internal_and_is_logged_with_its_traceback(capsys):
    server = await start(Board(ZeroDivisionError("division by zero")))
    async with rpc.connect(server.address) as channel:
        with pytest.raises(errors.Internal, match="ZeroDivisionError"):
            await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(), deadline_seconds=5)
    await server.drain()
    printed = capsys.readouterr()
    assert "Traceback" in printed.out + printed.err


async def test_a_request_out_of_bounds_lists_all_violations_and_reaches_no_servicer():
    board = Board()
    server = await start(board)
    async with rpc.connect(server.address) as channel:
        request = pb.GetAgentRequest(agent_id="\x1b[2J")
        with pytest.raises(errors.InvalidArgument) as caught:
            await rpc.call(stub(channel).GetAgent, request, deadline_seconds=5)
        (violation,) = caught.value.violations
        assert violation.field == "agent_id"
        assert "\x1b" not in caught.value.message
        many = pb.ListCandidatesRequest(tournament_id="a b", page_token="c/d")
        with pytest.raises(errors.InvalidArgument) as caught:
            await rpc.call(stub(channel).ListCandidates, many, deadline_seconds=5)
    assert [violation.field for violation in caught.value.violations] == ["tournament_id", "page_token"]
    assert board.calls == 0
    await server.drain()


async def test_many_long_violations_fit_into_the_metadata_of_a_call():
    violations = [errors.FieldViolation(f"field_{number}" * 50, "漢" * 900) for number in range(20)]
    server = await start(Board(errors.InvalidArgument("漢" * 900, violations=violations)))
    async with rpc.connect(server.address) as channel:
        with pytest.raises(errors.InvalidArgument) as caught:
            await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(), deadline_seconds=5)
    assert caught.value.violations
    await server.drain()


@pytest.mark.parametrize("chunk", [tensor_pb.TensorChunk(digest="short"), tensor_pb.TensorChunk(starts=[1] * 9)])
async def test_a_message_of_a_stream_out_of_bounds_is_refused_when_it_is_reached(chunk):
    board = Board()
    descriptor = tensor_pb.DESCRIPTOR.services_by_name["TensorService"]
    tensors = rpc.Service(descriptor, tensor_grpc.add_TensorServiceServicer_to_server, Tensors())
    services = [service(board), tensors]
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0), services, guard=Guard.of_anyone())
    async with rpc.connect(server.address) as channel:
        requests = [tensor_pb.WriteTensorsRequest(), tensor_pb.WriteTensorsRequest(chunk=chunk)]
        with pytest.raises(errors.InvalidArgument, match=r"chunk\.(digest|starts)"):
            await rpc.send(tensor_grpc.TensorServiceStub(channel).WriteTensors, requests, deadline_seconds=5)
    await server.drain()


GARBAGE = b"\xff\xff\xff garbage"


async def refused(call) -> errors.PodraceError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return rpc.from_rpc_error(caught.value)


@pytest.mark.parametrize(
    "method",
    [
        "podrace.leaderboard.v1.LeaderboardService/GetAgent",
        "podrace.leaderboard.v1.LeaderboardService/WatchCandidates",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
    ],
)
async def test_a_request_that_cannot_be_decoded_is_an_invalid_argument_without_a_traceback(method, capfd):
    board = Board()
    server = await start(board)
    async with grpc.aio.insecure_channel(server.address) as channel:
        kind = channel.unary_stream if method.endswith(("Watch", "WatchCandidates")) else channel.unary_unary
        call = kind(f"/{method}")(GARBAGE, timeout=5)
        error = await refused(call.read() if hasattr(call, "read") else call)
    await server.drain()
    assert isinstance(error, errors.InvalidArgument)
    assert f"/{method}: the {len(GARBAGE)} bytes of the request are not a valid message" in error.message
    assert board.calls == 0
    printed = capfd.readouterr()
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize("sound", [0, 2])
async def test_a_stream_with_a_message_that_cannot_be_decoded_is_an_invalid_argument(sound, capfd):
    descriptor = tensor_pb.DESCRIPTOR.services_by_name["TensorService"]
    tensors = rpc.Service(descriptor, tensor_grpc.add_TensorServiceServicer_to_server, Tensors())
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0), [tensors], guard=Guard.of_anyone())
    async with grpc.aio.insecure_channel(server.address) as channel:
        write = channel.stream_unary("/podrace.tensor.v1.TensorService/WriteTensors")
        messages = [tensor_pb.WriteTensorsRequest().SerializeToString()] * sound + [GARBAGE]
        error = await refused(write(iter(messages), timeout=5))
        accepted = await write(iter(messages[:sound]), timeout=5)
    await server.drain()
    assert isinstance(error, errors.InvalidArgument)
    assert tensor_pb.WriteTensorsResponse.FromString(accepted).size_bytes == sound
    printed = capfd.readouterr()
    assert "Traceback" not in printed.out + printed.err


def test_details_of_another_program_do_not_hide_the_error():
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff not a status"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailing, details="no such agent")
    translated = rpc.from_rpc_error(error)
    assert isinstance(translated, errors.NotFound)
    assert (translated.message, translated.reason) == ("no such agent", "")


def test_a_connection_that_is_closed_too_early_means_that_the_call_may_be_repeated():
    details = "Stream removed (sendmsg: Broken pipe (32))"
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
    translated = rpc.from_rpc_error(error)
    assert isinstance(translated, errors.Unavailable)
    assert translated.message == f"the server closed the connection before the call ended ({details}); try again"


async def test_a_stream_yields_and_then_raises():
    server = await start(Board(errors.Unavailable("draining")))
    async with rpc.connect(server.address) as channel:
        responses = rpc.stream(stub(channel).WatchCandidates, pb.WatchCandidatesRequest(), deadline_seconds=5)
        received = [(await anext(responses)).resume_token for _ in range(3)]
        with pytest.raises(errors.Unavailable, match="draining"):
            await anext(responses)
    assert received == [0, 1, 2]
    await server.drain()


def test_only_methods_marked_idempotent_are_retried():
    from podrace.agentpod.v1 import agentpod_pb2

    (config,) = rpc.service_config([agentpod_pb2.DESCRIPTOR])["methodConfig"]
    retried = {name["method"] for name in config["name"]}
    assert "OpenWorker" in retried
    assert "CollectRollout" not in retried
    assert config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]


async def test_an_idempotent_call_waits_for_a_server_that_restarts(tmp_path):
    address = f"unix:{short(tmp_path)}"
    async with rpc.connect(address, pb.DESCRIPTOR) as channel:
        waiting = asyncio.create_task(
            rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(agent_id="a"), deadline_seconds=20)
        )
        await asyncio.sleep(0)
        server = await start(Board(), listen=address)
        assert (await waiting).agent.agent_id == "a"
        await server.drain()


async def test_a_call_whose_token_depends_on_the_listener_waits_for_one_only_if_it_may_be_repeated(monkeypatch):
    monkeypatch.setattr(channel_settings, "LISTENER_POLL_SECONDS", 0.001)
    server, asked = await start(Board()), []

    def token() -> str:
        asked.append("again")
        if len(asked) < 5:
            raise NoListener("nothing listens here: start the service")
        return ""  # sends none

    async with rpc.connect(server.address, pb.DESCRIPTOR, token=token) as channel:
        found = await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(agent_id="a"), deadline_seconds=20)
        assert (found.agent.agent_id, len(asked)) == ("a", 5)
        for method, seconds, tries in (("GetAgent", 0.0, 1), ("Unmarked", 20.0, 1)):
            asked.clear()
            with pytest.raises(errors.Unavailable, match="nothing listens here"):
                await rpc.call(of(channel, method), pb.GetAgentRequest(agent_id="a"), deadline_seconds=seconds)
            assert len(asked) == tries
    await server.drain()


def of(channel, method):
    """Returns a method of the board that the proto may not know, and so does not mark as one that may be repeated."""
    path = f"/podrace.leaderboard.v1.LeaderboardService/{method}"
    return channel.unary_unary(path, pb.GetAgentRequest.SerializeToString, pb.GetAgentResponse.FromString)


@pytest.mark.long
async def test_an_idempotent_call_is_repeated_when_unavailable():
    board = Board(errors.Unavailable("not yet"))
    server = await start(board)
    async with rpc.connect(server.address, pb.DESCRIPTOR) as channel:
        with pytest.raises(errors.Unavailable):
            await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(), deadline_seconds=20)
    assert board.calls == 5
    await server.drain()


async def test_a_passed_deadline_raises_deadline_exceeded():
    async with rpc.connect("unix:/nonexistent/socket", pb.DESCRIPTOR) as channel:
        with pytest.raises(errors.DeadlineExceeded):
            await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(), deadline_seconds=0.1)


async def test_binding_a_port_in_use_fails_and_names_the_address():
    server = await start(Board())
    with pytest.raises(errors.Unavailable, match=server.address):
        await start(Board(), listen=server.address)
    await server.drain()


async def test_the_socket_of_a_live_server_is_not_replaced(tmp_path):
    address = f"unix:{short(tmp_path)}"
    server = await start(Board(), listen=address)
    for spelling in (address, address.replace("unix:", "unix://")):
        with pytest.raises(errors.Unavailable, match=f"cannot listen on {spelling}: another server does"):
            await start(Board(), listen=spelling)
    async with rpc.connect(address) as channel:
        answer = await rpc.call(stub(channel).GetAgent, pb.GetAgentRequest(agent_id="a"), deadline_seconds=5)
    assert answer.agent.agent_id == "a"
    await server.drain()


async def test_a_socket_file_of_a_dead_server_is_replaced(tmp_path):
    path = short(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.is_socket()
    server = await start(Board(), listen=f"unix:{path}")
    await rpc.wait_until_serving(server.address, deadline_seconds=5)
    await server.drain()


async def test_a_socket_path_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(errors.Unavailable, match=r"cannot listen on unix:/.*/xxx"):
        await start(Board(), listen=f"unix:{tmp_path}/{'x' * 200}")


async def test_waiting_polls_a_server_that_does_not_serve_yet():
    class Health(health_pb2_grpc.HealthServicer):
        answers = iter([grpc.StatusCode.NOT_FOUND, health_pb2.HealthCheckResponse.NOT_SERVING])

        async def Check(self, request, context):
            answer = next(self.answers, health_pb2.HealthCheckResponse.SERVING)
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "")
            return health_pb2.HealthCheckResponse(status=answer)

    server = grpc.aio.server()
    servicer = Health()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await rpc.wait_until_serving(f"127.0.0.1:{port}", deadline_seconds=10)
    assert next(servicer.answers, None) is None
    await server.stop(None)


async def test_health_reports_not_serving_when_the_server_drains():
    # Without grace time the stream may be cut off before it reports NOT_SERVING.
    server = await start(Board(), grace_seconds=30.0)
    await rpc.wait_until_serving(server.address, deadline_seconds=5)
    async with grpc.aio.insecure_channel(server.address) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        draining = asyncio.create_task(server.drain())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        await draining
    with pytest.raises(errors.Unavailable, match="nothing serves"):
        await rpc.wait_until_serving(server.address, deadline_seconds=0.1)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@pytest.mark.parametrize("wanted", [True, False])
async def test_reflection_is_served_only_when_it_is_switched_on(wanted, version):
    server = await start(Board(), reflection=wanted)
    async with grpc.aio.insecure_channel(server.address) as channel:
        # Both versions have the same messages.
        ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        if wanted:
            names = {entry.name for entry in (await ask.read()).list_services_response.service}
            assert "podrace.leaderboard.v1.LeaderboardService" in names
        else:
            with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                await ask.read()
    await server.drain()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_requests_shutdown_with_its_name(number):
    waiting = asyncio.create_task(rpc.shutdown_requested())
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    assert await waiting == number.name


async def test_the_first_awaitable_that_finishes_requests_shutdown():
    async def lost() -> str:
        return "the lifeline was lost"

    assert await rpc.shutdown_requested(lost()) == "the lifeline was lost"


def short(folder: Path) -> Path:
    """Returns a socket path short enough for the kernel, unlike those in pytest's folders."""
    link = Path(f"/tmp/pr-{os.getpid()}-{folder.name[-12:]}")
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return link / "s"


def check(leads: bool) -> None:
    if not leads:
        raise errors.Unavailable("another replica leads")


@pytest.mark.long
async def test_a_replica_that_does_not_lead_refuses_calls_and_clients_use_the_leader():
    leading = [True, False]
    boards = [Board(), Board()]
    servers = [
        await rpc.Server.start(
            rpc.ServerConfig(grace_seconds=0),
            [service(board)],
            guard=Guard.of_anyone(),
            check_leads=lambda number=number: check(leading[number]),
        )
        for number, board in enumerate(boards)
    ]
    request = pb.GetAgentRequest(agent_id="a")
    async with rpc.connect("ipv4:" + ",".join(server.address for server in servers), pb.DESCRIPTOR) as channel:
        stub = pb_grpc.LeaderboardServiceStub(channel)
        await rpc.call(stub.GetAgent, request, deadline_seconds=5)
        leading[0] = False
        with pytest.raises(errors.Unavailable, match="another replica"):
            await rpc.call(stub.GetAgent, request, deadline_seconds=5)
        with pytest.raises(errors.Unavailable):
            await rpc.wait_until_serving(servers[0].address, deadline_seconds=0.2)
        leading[1] = True
        await servers[0].drain()
        await rpc.call(stub.GetAgent, request, deadline_seconds=5)
    assert [board.calls for board in boards] == [1, 1]
    await servers[1].drain()


async def test_a_replica_that_waits_answers_health_checks_and_nothing_else():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = rpc.ServerConfig(health_listen=address, grace_seconds=0)
    for _ in range(2):
        async with rpc.standby_health(config, ready=True):
            await rpc.wait_until_serving(address, deadline_seconds=5)
            assert await health_of(address, rpc.LIVENESS) == SERVING
            async with rpc.connect(address, pb.DESCRIPTOR) as channel:
                stub = pb_grpc.LeaderboardServiceStub(channel)
                with pytest.raises(errors.Unimplemented):
                    await rpc.call(stub.GetAgent, pb.GetAgentRequest(agent_id="a"), deadline_seconds=5)
        # The port is free for the server of the leader.
        server = await rpc.Server.start(config, [service(Board())], guard=Guard.of_anyone())
        await rpc.wait_until_serving(address, deadline_seconds=5)
        await server.drain()
    async with rpc.standby_health(rpc.ServerConfig(), ready=True):
        pass


async def health_of(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=5)
        return int(answer.status)


async def test_a_server_that_is_not_ready_is_alive():
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0)
    server = await rpc.Server.start(config, [service(Board())], guard=Guard.of_anyone(), ready=False)
    names = ("", pb.DESCRIPTOR.services_by_name["LeaderboardService"].full_name)
    for ready in (False, True, False):
        await server.report_ready(ready)
        assert {await health_of(server.address, name) for name in names} == {SERVING if ready else NOT_SERVING}
        assert await health_of(server.address, rpc.LIVENESS) == SERVING
    await server.drain()
