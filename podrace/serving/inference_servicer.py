"""Translates between the Open Inference Protocol over gRPC and the engine; decides nothing."""

from collections.abc import Mapping
from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from podrace import __version__
from podrace.errors import InvalidArgument, PodraceError
from podrace.inference.v2 import open_inference_pb2 as pb
from podrace.inference.v2 import open_inference_pb2_grpc as pb_grpc
from podrace.rpc import Service
from podrace.serving import metrics
from podrace.serving.engine import PolicyEngine
from podrace.serving.open_inference import Inference, data_type, infer, is_ready, listed, metadata, tensor
from podrace.serving.servicer import deadline_of, wire_bytes

Context = grpc.aio.ServicerContext[Any, Any]
CONTENTS: Mapping[str, str] = {
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "BOOL": "bool_contents",
}
"""Field of InferTensorContents by type; FP16 has none and needs raw contents."""


def inference_service(engine: PolicyEngine) -> Service:
    """Returns the service to serve."""
    contract = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    return Service(contract, pb_grpc.add_GRPCInferenceServiceServicer_to_server, InferenceServicer(engine))


class InferenceServicer(pb_grpc.GRPCInferenceServiceServicer):
    """Answers clients of Triton and KServe; the contract describes the methods."""

    def __init__(self, engine: PolicyEngine) -> None:
        self._engine = engine

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        """Answers; see the contract."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Returns whether a version serves; see the contract."""
        return pb.ServerReadyResponse(ready=bool(self._engine.record.current))

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """Returns whether a version is loaded; see the contract."""
        return pb.ModelReadyResponse(ready=is_ready(self._engine, request.name, request.version))

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        """Describes the server; see the contract."""
        return pb.ServerMetadataResponse(name="podrace", version=__version__, extensions=["sequence"])

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        """Describes inputs and outputs; see the contract."""
        return pb.ModelMetadataResponse(**metadata(self._engine, request.name, request.version))

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """Acts; see the contract."""
        try:
            asked = Inference(
                request.model_name,
                request.model_version,
                _inputs(request),
                [output.name for output in request.outputs],
                {name: _parameter(value) for name, value in request.parameters.items()},
            )
            version, outputs = await infer(self._engine, asked, deadline_of(context))
        except PodraceError as error:
            metrics.REQUESTS.labels("inference_grpc", error.code).inc()
            raise
        metrics.REQUESTS.labels("inference_grpc", "OK").inc()
        return _response(request, version, outputs)


def _inputs(request: pb.ModelInferRequest) -> dict[str, NDArray[Any]]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidArgument(f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs")
    if raw:
        pairs = zip(request.inputs, raw, strict=True)
        return {given.name: tensor(given.name, given.datatype, given.shape, data) for given, data in pairs}
    return {given.name: _listed(given) for given in request.inputs}


def _listed(given: pb.ModelInferRequest.InferInputTensor) -> NDArray[Any]:
    if given.datatype not in CONTENTS:
        raise InvalidArgument(f"input {given.name!r}: datatype {given.datatype!r} needs raw_input_contents")
    values = np.array(getattr(given.contents, CONTENTS[given.datatype]))
    return listed(given.name, given.datatype, given.shape, values)


def _parameter(value: pb.InferParameter) -> Any:
    chosen = value.WhichOneof("parameter_choice")
    return getattr(value, chosen) if chosen else None


def _response(
    request: pb.ModelInferRequest, version: str, outputs: Mapping[str, NDArray[Any]]
) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(model_name=request.model_name, model_version=version, id=request.id)
    for name, array in outputs.items():
        found = response.outputs.add(name=name, datatype=data_type(array.dtype), shape=array.shape)
        if request.raw_input_contents:
            response.raw_output_contents.append(wire_bytes(array))
        else:
            getattr(found.contents, CONTENTS[found.datatype]).extend(array.ravel().tolist())
    return response
