"""Every method of every service answers errors in one way: what a client reads from one, it can read from all."""

import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.rpc import error_details_pb2, status_pb2

from podrace import errors, rpc
from podrace.access.guard import Guard
from podrace.access.rules import NONE, rule_of
from podrace.bounds.v1 import bounds_pb2
from podrace.error.v1 import error_reason_pb2

TIMEOUT_SECONDS = 60.0
PROTOS = Path(__file__).parents[2] / "protos"
REASONS = set(error_reason_pb2.ErrorReason.keys())
ERRORS: list[errors.PodraceError] = [
    *(kind("wrong", metadata={"detail": "more"}) for kind in errors.BY_CODE.values()),
    errors.FailedPrecondition("wrong", reason=errors.NOT_OPEN, metadata={"detail": "more"}),
    errors.ResourceExhausted("wrong", retry_seconds=2.5, metadata={"detail": "more"}),
    errors.InvalidArgument(
        "wrong",
        violations=[errors.FieldViolation("a", "= 1: b"), errors.FieldViolation("c", "d")],
        metadata={"detail": "more"},
    ),
]


def modules() -> dict[str, Any]:
    """The generated modules of all services, by the full names of the services."""
    found = {}
    for path in sorted(PROTOS.rglob("*.proto")):
        name = ".".join(path.relative_to(PROTOS).with_suffix("").parts)
        for service in importlib.import_module(f"{name}_pb2").DESCRIPTOR.services_by_name.values():
            found[service.full_name] = (service, importlib.import_module(f"{name}_pb2_grpc"))
    return found


SERVICES: dict[str, tuple[ServiceDescriptor, Any]] = modules()
METHODS = [method for service, _ in SERVICES.values() for method in service.methods]


class Raising:
    """What the servicers raise next."""

    error: Exception = errors.Unimplemented("nothing is raised yet")


def servicer(service: ServiceDescriptor, raising: Raising) -> object:
    async def unary(self: object, request: Any, context: Any) -> Any:
        raise raising.error

    async def stream(self: object, request: Any, context: Any) -> AsyncIterator[Any]:
        if not hasattr(request, "DESCRIPTOR"):
            await anext(aiter(request), None)
        raise raising.error
        yield

    async def stream_unary(self: object, request: Any, context: Any) -> Any:
        await anext(aiter(request), None)
        raise raising.error

    def behaviour(method: MethodDescriptor) -> Any:
        if method.server_streaming:
            return stream
        return stream_unary if method.client_streaming else unary

    return type("Servicer", (), {method.name: behaviour(method) for method in service.methods})()


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[tuple[grpc.aio.Channel, Raising]]:
    tmp_path.chmod(0o700)
    raising = Raising()
    served = [
        rpc.Service(service, getattr(module, f"add_{service.name}Servicer_to_server"), servicer(service, raising))
        for service, module in SERVICES.values()
    ]
    config = rpc.ServerConfig(listen=f"unix:{tmp_path}/s", grace_seconds=0.0)
    server = await rpc.Server.start(config, served, guard=Guard.of_anyone())
    async with rpc.connect(server.address) as channel:
        yield channel, raising
    await server.drain()


def valid_request(method: MethodDescriptor) -> Any:
    """A request with everything that is required, and with an id in the field that the rule of the method names."""
    request = message_factory.GetMessageClass(method.input_type)()
    for field in method.input_type.fields:
        if field.GetOptions().Extensions[bounds_pb2.bounds].required:
            _set(request, field)
    path = rule_of(f"/{method.containing_service.full_name}/{method.name}").path
    part = request
    for name in path[:-1]:
        part = getattr(part, name)
    if path:
        setattr(part, path[-1], "t-a1")
    return request


def _set(request: Any, field: FieldDescriptor) -> None:
    if field.message_type is not None:
        getattr(request, field.name).SetInParent()
    elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32):
        setattr(request, field.name, 1)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        setattr(request, field.name, b"r")
    else:
        is_digest = field.GetOptions().Extensions[bounds_pb2.bounds].format == bounds_pb2.FORMAT_DIGEST
        setattr(request, field.name, "0" * 64 if is_digest else "r")


async def failed(channel: grpc.aio.Channel, method: MethodDescriptor, request: Any) -> grpc.aio.AioRpcError:
    """Makes a call that has to fail."""
    kind = "_".join("stream" if many else "unary" for many in (method.client_streaming, method.server_streaming))
    response = message_factory.GetMessageClass(method.output_type)
    call = getattr(channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=response.FromString,
    )(iter([request]) if method.client_streaming else request, timeout=TIMEOUT_SECONDS, wait_for_ready=True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if method.server_streaming else call)
    return caught.value


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The details of an error by the names of their types; each occurs once."""
    names = ("ErrorInfo", "BadRequest", "ResourceInfo", "RetryInfo")
    known = {f"google.rpc.{name}": getattr(error_details_pb2, name) for name in names}
    ((_, data),) = [pair for pair in error.trailing_metadata() or () if pair[0] == "grpc-status-details-bin"]
    status = status_pb2.Status.FromString(data)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = {}
    for detail in status.details:
        kind = known[detail.TypeName()]
        assert detail.TypeName() not in found
        found[kind.DESCRIPTOR.name] = kind.FromString(detail.value)
    return found


@pytest.mark.parametrize("service", SERVICES)
async def test_every_error_of_a_method_has_the_same_details(mesh: Any, service: str) -> None:
    channel, raising = mesh
    for method in SERVICES[service][0].methods:
        for raising.error in ERRORS:
            error = await failed(channel, method, valid_request(method))
            check_details(error, raising.error, method)
            # The client of this project makes the same error of it.
            again = rpc.from_rpc_error(error)
            assert type(again) is type(raising.error)
            assert (again.reason, again.retry_seconds) == (raising.error.reason, raising.error.retry_seconds)


def check_details(error: grpc.aio.AioRpcError, expected: errors.PodraceError, method: MethodDescriptor) -> None:
    service = method.containing_service.full_name
    assert error.code().name == expected.code
    found = details(error)
    info = found.pop("ErrorInfo")
    assert info.domain == "podrace"
    assert info.reason in REASONS
    assert info.reason == (expected.reason or f"ERROR_REASON_{expected.code}")
    assert dict(info.metadata) == {"service": service, "method": method.name, **expected.metadata}
    bad = found.pop("BadRequest", error_details_pb2.BadRequest())
    violations = [(one.field, one.description) for one in bad.field_violations]
    whole = [("", expected.message)] if isinstance(expected, errors.InvalidArgument) else []
    assert violations == ([(one.field, one.problem) for one in getattr(expected, "violations", ())] or whole)
    retry = found.pop("RetryInfo", None)
    assert (retry and retry.retry_delay.ToMilliseconds() / 1000) == expected.retry_seconds
    resource = found.pop("ResourceInfo", None)
    named = rule_of(f"/{service}/{method.name}").path and not method.client_streaming
    assert bool(resource) == bool(isinstance(expected, errors.NotFound) and named), method.full_name
    assert not resource or (resource.resource_type and resource.resource_name == "t-a1")
    assert found == {}


@pytest.mark.parametrize("service", SERVICES)
async def test_all_fields_that_are_out_of_bounds_are_listed(mesh: Any, service: str) -> None:
    channel, _ = mesh
    for method in SERVICES[service][0].methods:
        request, wrong = valid_request(method), []
        for field in method.input_type.fields:
            bounds = field.GetOptions().Extensions[bounds_pb2.bounds]
            if bounds.format == bounds_pb2.FORMAT_ID and not field.is_repeated:
                setattr(request, field.name, "not an id")
                wrong.append(field.name)
        if not wrong:
            continue
        found = details(await failed(channel, method, request))
        assert [one.field for one in found["BadRequest"].field_violations] == wrong
        assert found["ErrorInfo"].reason == "ERROR_REASON_INVALID_ARGUMENT"
        assert found["ErrorInfo"].metadata["method"] == method.name


async def test_a_defect_is_an_internal_error_with_the_same_details(mesh: Any) -> None:
    channel, raising = mesh
    raising.error = ZeroDivisionError("wrong")
    method = METHODS[0]
    error = await failed(channel, method, valid_request(method))
    check_details(error, errors.Internal("wrong"), method)
    assert error.details() == "ZeroDivisionError: wrong; the service's log has the traceback"


async def test_a_method_that_does_not_exist_is_answered_in_the_same_way(mesh: Any) -> None:
    channel, _ = mesh
    for kind in ("unary_unary", "unary_stream", "stream_stream"):
        call = getattr(channel, kind)("/podrace.orchestrator.v1.OrchestratorService/Missing")
        streamed = kind.startswith("stream")
        made = call(iter([b""]) if streamed else b"", timeout=TIMEOUT_SECONDS, wait_for_ready=True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (made.read() if kind.endswith("stream") else made)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        info = details(caught.value)["ErrorInfo"]
        assert info.reason == "ERROR_REASON_UNIMPLEMENTED"
        assert dict(info.metadata) == {"service": "podrace.orchestrator.v1.OrchestratorService", "method": "Missing"}


def test_there_is_a_reason_for_every_status_code() -> None:
    assert {f"ERROR_REASON_{code}" for code in errors.BY_CODE} <= REASONS


def test_most_methods_name_the_resource_that_they_concern() -> None:
    named = [
        method
        for method in METHODS
        if rule_of(f"/{method.containing_service.full_name}/{method.name}").resource != NONE
    ]
    assert len(METHODS) > len(named) > 30
