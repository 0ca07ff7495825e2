"""Serves the Open Inference Protocol, version 2, over HTTP: health, metadata and inference, with binary tensors.

Binary tensors are an extension of the protocol that Triton's client uses by default: the body is a JSON header of
`Inference-Header-Content-Length` bytes, followed by the elements of the tensors that the header names with the
parameter `binary_data_size`.
"""

import asyncio
import json
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from aiohttp import web
from numpy.typing import NDArray

from podrace import __version__, http_server
from podrace.access.credentials import AUTHORIZATION, Credentials, bearer_token
from podrace.access.guard import Guard
from podrace.access.principal import set_current_principal
from podrace.access.rules import rule_of
from podrace.errors import DeadlineExceeded, InvalidArgument, PodraceError, Unavailable
from podrace.http_server import IDLE_SECONDS, app_runner
from podrace.inference.v2 import open_inference_pb2 as pb
from podrace.rpc import LARGEST_MESSAGE_BYTES
from podrace.rpc.listening import check_local
from podrace.serving import metrics
from podrace.serving.engine import PolicyEngine
from podrace.serving.open_inference import MODEL, Inference, data_type, infer, is_ready, listed, metadata, tensor
from podrace.serving.servicer import wire_bytes
from podrace.tls import identity_for

HEADER_LENGTH = "Inference-Header-Content-Length"
STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "CANCELLED": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP status by code of an error; 500 for others."""
METHOD = "/inference.GRPCInferenceService/"
BODY_SECONDS = 60.0
"""Time in which a client must send the body of a request."""
SHARE_OF_DESCRIPTORS = 0.125
"""Share of the file descriptors of the process that connections may take. Those of gRPC may take three quarters."""
TIMEOUT_HEADER = "Request-Timeout-Seconds"

_log = structlog.get_logger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RestServer:
    """A listening HTTP server.

    server = await RestServer.start("127.0.0.1:8000", engine, guard)
    await server.close()
    """

    def __init__(self, runner: web.AppRunner, address: str) -> None:
        self._runner = runner
        self.address = address

    @classmethod
    async def start(
        cls,
        listen: str,
        engine: PolicyEngine,
        guard: Guard,
        *,
        insecure: bool = False,
        idle_seconds: float = IDLE_SECONDS,
    ) -> "RestServer":
        """Binds and serves.

        Args:
            listen: `host:port`; port 0: any free one.
            engine: Answers requests.
            guard: Decides about each request except health checks, by the rules of the gRPC contract.
            insecure: Allow an address that other machines reach without TLS.
            idle_seconds: How long a connection may stay open without a complete request.

        Raises:
            Unavailable: The address cannot be bound.
            FailedPrecondition: Other machines reach it and there is no TLS.
        """
        host, _, port = listen.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise InvalidArgument(f"rest_listen = {listen!r}: expected host:port")
        identity = identity_for(listen)
        context: ssl.SSLContext | None = None
        if identity is not None and identity.certificate:
            # Callers identify themselves by tokens here, as at `server.token_listen`.
            context = identity.of_https_server()
        elif not insecure:
            check_local(listen)
        runner = app_runner(application(engine, guard), idle_seconds=idle_seconds)
        await runner.setup()
        try:
            await http_server.listen(
                runner, host.strip("[]"), int(port), ssl_context=context, share=SHARE_OF_DESCRIPTORS
            )
        except OSError as error:
            await runner.cleanup()
            raise Unavailable(f"cannot listen on {listen}: {error.strerror}; choose another address") from None
        return cls(runner, f"{host}:{runner.addresses[0][1]}")

    async def close(self) -> None:
        """Completes running requests and closes the connections."""
        await self._runner.cleanup()


def application(engine: PolicyEngine, guard: Guard) -> web.Application:
    """Returns the application with all routes."""
    routes = _Routes(engine)
    app = web.Application(client_max_size=LARGEST_MESSAGE_BYTES, middlewares=[_errors, _access(guard)])
    app.router.add_get("/v2/health/live", routes.live, name="live")
    app.router.add_get("/v2/health/ready", routes.ready, name="ready")
    app.router.add_get("/v2", routes.server, name="ServerMetadata")
    bases = {"model": "/v2/models/{model}", "version": "/v2/models/{model}/versions/{version}"}
    for kind, base in bases.items():
        app.router.add_get(base, routes.model, name=f"ModelMetadata.{kind}")
        app.router.add_get(f"{base}/ready", routes.model_ready, name=f"ModelReady.{kind}")
        app.router.add_post(f"{base}/infer", routes.infer, name=f"ModelInfer.{kind}")
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers errors with a status and one line, as the protocol states."""
    try:
        return await handler(request)
    except PodraceError as error:
        headers = {} if error.retry_seconds is None else {"Retry-After": str(math.ceil(error.retry_seconds))}
        return web.json_response({"error": error.message}, status=STATUS.get(error.code, 500), headers=headers)
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)
    except ConnectionResetError:
        # The client closed the connection before it had sent the request; this answer is not sent.
        return web.json_response({"error": "the connection was closed"}, status=400)
    except Exception:
        _log.exception("request failed", path=request.path)
        return web.json_response({"error": "a defect of the server; its log has the traceback"}, status=500)


def _access(guard: Guard) -> Any:
    """Returns a middleware that applies the rules of the gRPC contract."""

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = (request.match_info.route.name or "").partition(".")[0]
        if name not in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name:
            # A health check, or a path that does not exist.
            return await handler(request)
        rule = rule_of(METHOD + name)
        token = bearer_token([(AUTHORIZATION, request.headers.get("Authorization", ""))])
        credentials = Credentials(token, f"ipv4:{request.remote}")
        principal = await guard.authenticate(credentials, rule)
        guard.check_role(principal, credentials.peer, rule, None)
        guard.check(principal, credentials.peer, rule, None)
        set_current_principal(principal)
        return await handler(request)

    return admit


class _Routes:
    def __init__(self, engine: PolicyEngine) -> None:
        self._engine = engine

    async def live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        ready = bool(self._engine.record.current)
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def server(self, request: web.Request) -> web.Response:
        extensions = ["binary_tensor_data", "sequence"]
        return web.json_response({"name": "podrace", "version": __version__, "extensions": extensions})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(metadata(self._engine, *_named(request)))

    async def model_ready(self, request: web.Request) -> web.Response:
        ready = is_ready(self._engine, *_named(request))
        return web.json_response({"name": _named(request)[0], "ready": ready}, status=200 if ready else 404)

    async def infer(self, request: web.Request) -> web.Response:
        try:
            header, binary = _split(request.headers.get(HEADER_LENGTH), await _body(request))
            asked = _inference(_named(request), header, binary)
            version, outputs = await infer(self._engine, asked, _deadline(request))
        except PodraceError as error:
            metrics.REQUESTS.labels("inference_rest", error.code).inc()
            raise
        metrics.REQUESTS.labels("inference_rest", "OK").inc()
        return _answer(header, version, outputs)


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise DeadlineExceeded(f"the body of the request did not arrive within {BODY_SECONDS:g} s") from None


def _named(request: web.Request) -> tuple[str, str]:
    return request.match_info["model"], request.match_info.get("version", "")


def _deadline(request: web.Request) -> float:
    text = request.headers.get(TIMEOUT_HEADER, "")
    try:
        left = float(text) if text else math.inf
        if math.isnan(left):
            raise ValueError
    except ValueError:
        raise InvalidArgument(f"header {TIMEOUT_HEADER}: {text[:20]!r} is not a number of seconds") from None
    return asyncio.get_running_loop().time() + left


def _split(length: str | None, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Splits a body into its JSON and the binary tensors.

    Raises:
        InvalidArgument: It has another form.
    """
    try:
        size = len(body) if length is None else int(length)
        if not 0 <= size <= len(body):
            raise ValueError
        header = json.loads(body[:size])
    except (ValueError, RecursionError):
        raise InvalidArgument(f"the body is not a JSON object, or {HEADER_LENGTH} is wrong") from None
    if not isinstance(header, dict) or not isinstance(header.get("inputs"), list):
        raise InvalidArgument("the body has no list 'inputs'")
    outputs = header.setdefault("outputs", [])
    if not isinstance(outputs, list) or not isinstance(header.setdefault("parameters", {}), dict):
        raise InvalidArgument("'outputs' is a list, and 'parameters' an object")
    if not all(isinstance(one, dict) and isinstance(one.setdefault("parameters", {}), dict) for one in outputs):
        raise InvalidArgument("'outputs': each has a name, and an object 'parameters' if it has parameters")
    return header, body[size:]


def _inference(named: tuple[str, str], header: Mapping[str, Any], binary: bytes) -> Inference:
    inputs, start = {}, 0
    try:
        for given in header["inputs"]:
            name, datatype, shape = str(given["name"]), str(given["datatype"]), [int(one) for one in given["shape"]]
            size = given.get("parameters", {}).get("binary_data_size")
            if size is None:
                inputs[name] = listed(name, datatype, shape, given["data"])
                continue
            inputs[name] = tensor(name, datatype, shape, binary[start : start + int(size)])
            start += int(size)
        outputs = [str(wanted["name"]) for wanted in header["outputs"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidArgument(f"the body is not an inference request: {type(error).__name__} {error}") from None
    return Inference(*named, inputs, outputs, header["parameters"])


def _answer(header: Mapping[str, Any], version: str, outputs: Mapping[str, NDArray[Any]]) -> web.Response:
    wanted = {one["name"]: one["parameters"] for one in header["outputs"]}
    all_binary = header["parameters"].get("binary_data_output") is True
    described, binary = [], []
    for name, array in outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": data_type(array.dtype), "shape": list(array.shape)}
        if wanted.get(name, {}).get("binary_data", all_binary) is True:
            binary.append(wire_bytes(array))
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = array.ravel().tolist()
        described.append(entry)
    answer = {"model_name": MODEL, "model_version": version, "outputs": described}
    answer |= {"id": header["id"]} if isinstance(header.get("id"), str) else {}
    text = json.dumps(answer).encode()
    if not binary:
        return web.Response(body=text, content_type="application/json")
    headers = {HEADER_LENGTH: str(len(text))}
    return web.Response(body=b"".join([text, *binary]), content_type="application/octet-stream", headers=headers)
