"""The Open Inference Protocol over gRPC and HTTP: the answers, the errors, and both in front of the same engine."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
from policy_world import PolicyWorld, act, ask, model, name, observation

from podrace import rpc
from podrace.access.authenticators.token_file import StaticTokenAuthenticator
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.principal import Principal
from podrace.access.v1 import access_pb2
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound
from podrace.inference.v2 import open_inference_pb2 as pb
from podrace.inference.v2 import open_inference_pb2_grpc as pb_grpc
from podrace.serving import rest
from podrace.serving.policy_version import PolicyVersion
from podrace.serving.rest import RestServer

HEADER = "Inference-Header-Content-Length"


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[PolicyWorld]:
    made = await PolicyWorld.start(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def recurrent(tmp_path) -> AsyncIterator[PolicyWorld]:
    made = await PolicyWorld.start(tmp_path, "recurrent")
    yield made
    await made.close()


def stub_of(world: PolicyWorld) -> Any:
    channel = rpc.connect(world.server.address, pb.DESCRIPTOR)
    world.channels.append(channel)
    return pb_grpc.GRPCInferenceServiceStub(channel)


def infer_request(seen: Any, *, raw: bool = True, **fields: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="policy", id="7", **fields)
    given = request.inputs.add(name="observation", datatype="FP32", shape=seen.shape)
    if raw:
        request.raw_input_contents.append(seen.tobytes())
    else:
        given.contents.fp32_contents.extend(seen.ravel().tolist())
    return request


def expected(seen: Any, seed: int = 1) -> Any:
    return PolicyVersion(model(seed)).compute(seen, np.zeros((len(seen), 0), np.float32), outputs=False)["action"]


async def posted(world: PolicyWorld, body: Any, path: str = "/v2/models/policy/infer") -> tuple[int, Any]:
    data, url = body if isinstance(body, bytes) else json.dumps(body), f"http://{world.rest.address}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, data=data) as answer:
        return answer.status, json.loads(await answer.read())


async def got(world: PolicyWorld, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{world.rest.address}{path}") as answer:
        return answer.status, await answer.json()


def listed(seen: Any) -> dict[str, Any]:
    data = seen.ravel().tolist()
    return {"name": "observation", "datatype": "FP32", "shape": list(seen.shape), "data": data}


@pytest.mark.parametrize("raw", [True, False])
async def test_grpc_answers_in_the_form_of_the_request_and_names_the_version(world, raw):
    seen = observation(4)
    answer = await ask(stub_of(world).ModelInfer, infer_request(seen, raw=raw))
    assert (answer.model_name, answer.model_version, answer.id) == ("policy", name(1), "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("action", "INT64", [4])
    found = np.frombuffer(answer.raw_output_contents[0], "<i8") if raw else output.contents.int64_contents
    assert list(found) == list(expected(seen))
    assert bool(answer.raw_output_contents) == raw


async def test_grpc_describes_server_and_model(world):
    stub = stub_of(world)
    assert (await ask(stub.ServerLive, pb.ServerLiveRequest())).live
    assert (await ask(stub.ServerReady, pb.ServerReadyRequest())).ready
    assert (await ask(stub.ServerMetadata, pb.ServerMetadataRequest())).name == "podrace"
    assert (await ask(stub.ModelReady, pb.ModelReadyRequest(name="policy"))).ready
    assert not (await ask(stub.ModelReady, pb.ModelReadyRequest(name="other"))).ready
    found = await ask(stub.ModelMetadata, pb.ModelMetadataRequest(name="policy"))
    assert [(one.name, one.datatype, list(one.shape)) for one in [*found.inputs, *found.outputs]] == [
        ("observation", "FP32", [-1, 3]),
        ("action", "INT64", [-1]),
    ]
    assert list(found.versions) == [name(1)]


async def test_grpc_refuses_what_does_not_fit_and_says_what_does(world):
    stub = stub_of(world)
    with pytest.raises(InvalidArgument, match=r"FP32 of shape \[2, 2\], expected FP32 of shape \['N', 3\]"):
        await ask(stub.ModelInfer, infer_request(observation(2)[:, :2]))
    with pytest.raises(NotFound, match="the only one is 'policy'"):
        await ask(stub.ModelInfer, pb.ModelInferRequest(model_name="other"))
    with pytest.raises(InvalidArgument, match="'observation' is missing"):
        await ask(stub.ModelInfer, pb.ModelInferRequest(model_name="policy"))
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name="value")]
    with pytest.raises(InvalidArgument, match="output 'value': there are action"):
        await ask(stub.ModelInfer, infer_request(observation(), outputs=outputs))
    with pytest.raises(NotFound, match="is not loaded"):
        await ask(stub.ModelInfer, infer_request(observation(), model_version="3"))


async def test_a_sequence_keeps_the_recurrent_state_and_ends(recurrent):
    stub, policy, state = stub_of(recurrent), PolicyVersion(model(1, "recurrent")), np.zeros((1, 5), np.float32)

    async def step(number: int, **flags: bool) -> Any:
        parameters = {flag: pb.InferParameter(bool_param=value) for flag, value in flags.items()}
        parameters["sequence_id"] = pb.InferParameter(int64_param=42)
        return await ask(stub.ModelInfer, infer_request(observation(1, number), parameters=parameters))

    for number in range(4):
        answer = await step(number, sequence_start=number == 0, sequence_end=number == 3)
        wanted = policy.compute(observation(1, number), state, outputs=False)
        state = wanted["next_state"]
        assert np.frombuffer(answer.raw_output_contents[0], "<i8") == wanted["action"]
        assert [output.name for output in answer.outputs] == ["action"]
    with pytest.raises(FailedPrecondition, match="begin an episode"):
        await step(5, sequence_start=False)


async def test_a_client_may_keep_the_state_between_two_requests(recurrent):
    stub = stub_of(recurrent)
    first = await ask(stub.ModelInfer, infer_request(observation(2)))
    assert [(one.name, list(one.shape)) for one in first.outputs] == [("action", [2]), ("next_state", [2, 5])]
    request = infer_request(observation(2, 1))
    request.inputs.add(name="state", datatype="FP32", shape=[2, 5])
    request.raw_input_contents.append(first.raw_output_contents[1])
    second = await ask(stub.ModelInfer, request)
    assert second.raw_output_contents[1] != first.raw_output_contents[1]


async def test_http_answers_json_and_names_the_version(world):
    seen = observation(3)
    status, answer = await posted(world, {"id": "9", "inputs": [listed(seen)]})
    assert status == 200
    assert answer["outputs"] == [{"name": "action", "datatype": "INT64", "shape": [3], "data": list(expected(seen))}]
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("policy", name(1), "9")


async def test_http_takes_and_returns_binary_tensors(world):
    seen = observation(3)
    given = {**listed(seen), "parameters": {"binary_data_size": seen.nbytes}}
    del given["data"]
    header = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    async with aiohttp.ClientSession() as session:
        url, headers = f"http://{world.rest.address}/v2/models/policy/infer", {HEADER: str(len(header))}
        async with session.post(url, data=header + seen.tobytes(), headers=headers) as answer:
            body, length = await answer.read(), int(answer.headers[HEADER])
    (output,) = json.loads(body[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": 24}
    assert list(np.frombuffer(body[length:], "<i8")) == list(expected(seen))


async def test_http_describes_server_and_model_and_reports_health(world):
    assert await got(world, "/v2/health/live") == (200, {"live": True})
    assert await got(world, "/v2/health/ready") == (200, {"ready": True})
    assert (await got(world, "/v2"))[1]["extensions"] == ["binary_tensor_data", "sequence"]
    status, found = await got(world, f"/v2/models/policy/versions/{name(1)}")
    assert (status, found["inputs"][0]["shape"]) == (200, [-1, 3])
    assert (await got(world, "/v2/models/policy/versions/8/ready"))[0] == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[" * 100_000, 400),
        ([], 400),
        ({"inputs": 3}, 400),
        ({"inputs": [{}]}, 400),
        ({"inputs": [3]}, 400),
        ({"inputs": [], "outputs": [3]}, 400),
        ({"inputs": [], "parameters": [["a", 1]]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "FP32", "shape": [-1, 3], "data": [1, 2, 3]}]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "FP32", "shape": [1, 3], "data": ["x", {}, 1]}]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "FP32", "shape": [10**30], "data": [1]}]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "FP32", "shape": [1, 3], "data": [1, None, 1]}]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "FP32", "shape": [1, 3], "data": [1, math.nan, 1]}]}, 400),
        ({"inputs": [{"name": "observation", "datatype": "FP32", "shape": [1, 3], "data": [1, 1e39, 1]}]}, 400),
        (b" " * (5 << 20), 413),
    ],
)
async def test_http_refuses_bodies_that_are_no_requests_with_one_line(world, body, status):
    found, answer = await posted(world, body)
    assert found == status
    assert "\n" not in answer["error"]


async def test_both_protocols_and_policy_service_have_the_same_version_after_a_swap(world):
    world.export(2)
    await world.follower.poll()
    seen = observation(2)
    _, by_http = await posted(world, {"inputs": [listed(seen)]})
    by_grpc = await ask(stub_of(world).ModelInfer, infer_request(seen))
    assert {by_http["model_version"], by_grpc.model_version, (await act(world.stub(), seen)).version} == {name(2)}
    _, before = await posted(world, {"inputs": [listed(seen)]}, f"/v2/models/policy/versions/{name(1)}/infer")
    assert before["outputs"][0]["data"] == list(expected(seen))


class OfTokens:
    async def authenticate(self, credentials: Credentials) -> Principal | None:
        roles = {"reads": access_pb2.ROLE_VIEWER, "pod": access_pb2.ROLE_POD_ROLE}
        return Principal("x", frozenset({roles[credentials.token]})) if credentials.token in roles else None


async def test_http_answers_only_callers_whose_role_may_act_and_everyone_about_its_health(world):
    rest = await RestServer.start("127.0.0.1:0", world.engine, Guard([OfTokens()]))
    statuses = {}
    async with aiohttp.ClientSession() as session:
        for token in ("", "guess", "pod", "reads"):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            body = json.dumps({"inputs": [listed(observation())]})
            url = f"http://{rest.address}/v2/models/policy/infer"
            async with session.post(url, data=body, headers=headers) as answer:
                statuses[token] = answer.status
        async with session.get(f"http://{rest.address}/v2/health/ready") as answer:
            statuses["health"] = answer.status
    await rest.close()
    assert statuses == {"": 401, "guess": 401, "pod": 403, "reads": 200, "health": 200}


async def test_a_token_that_is_no_text_is_refused_like_any_other(world):
    # Before, it could not be encoded: 500, and a traceback in the log.
    rest = await RestServer.start("127.0.0.1:0", world.engine, Guard([StaticTokenAuthenticator("secret")]))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rest.address.rpartition(":")[2]))
    head = b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer "
    writer.write(head + b"\xff\xfe\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await rest.close()
    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_http_on_an_address_that_others_reach_needs_tls(world):
    with pytest.raises(FailedPrecondition, match="without TLS"):
        await RestServer.start("0.0.0.0:0", world.engine, Guard([]))


@pytest.mark.parametrize("sent", [b"", b"GET /v2 HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "some headers"])
async def test_a_connection_without_a_complete_request_is_closed(world, sent: bytes):
    """Fails on the earlier behaviour: it stayed open for an hour."""
    rest = await RestServer.start("127.0.0.1:0", world.engine, Guard([]), idle_seconds=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(rest.address.rpartition(":")[2]))
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 30.0) == b""
    writer.close()
    await rest.close()


async def opened(world: PolicyWorld) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begins a request whose body never comes."""
    host, _, port = world.rest.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v2/models/policy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nab")
    return reader, writer


async def test_a_body_that_does_not_arrive_is_answered_and_the_connection_closed(world, monkeypatch):
    monkeypatch.setattr(rest, "BODY_SECONDS", 0.05)
    reader, writer = await opened(world)
    assert b" 504 " in await reader.readline()
    assert b"did not arrive within 0.05 s" in await asyncio.wait_for(reader.read(), 30.0)
    writer.close()


async def test_a_client_that_leaves_before_its_body_is_complete_is_not_logged(world, monkeypatch, log_lines):
    """Fails on the earlier behaviour: each of them wrote a traceback to the log."""
    reading, answered = asyncio.Event(), asyncio.Event()
    read = rest._body

    async def body(request: Any) -> bytes:
        reading.set()
        try:
            return await read(request)
        finally:
            answered.set()

    monkeypatch.setattr(rest, "_body", body)
    _, writer = await opened(world)
    await asyncio.wait_for(reading.wait(), 30.0)
    writer.transport.abort()
    await asyncio.wait_for(answered.wait(), 30.0)
    await got(world, "/v2/health/live")
    assert not [line for line in log_lines if line["log_level"] == "error"]
