"""Acts with KServe's client over gRPC and HTTP: `python kserve_client.py GRPC_ADDRESS HTTP_ADDRESS`.

Runs in a separate environment, because that client needs another protobuf. Prints what it got as JSON.
"""

import asyncio
import json
import sys

import numpy
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

SEEN = numpy.linspace(-1.0, 1.0, 6, dtype=numpy.float32).reshape(2, 3)


def request(step: int, *, sequence: bool, binary: bool, model: str = "policy") -> InferRequest:
    observation = InferInput("observation", [2, 3], "FP32")
    observation.set_data_from_numpy(SEEN, binary_data=binary)
    marks = {"sequence_id": 7, "sequence_start": step == 0, "sequence_end": step == 2} if sequence else {}
    return InferRequest(model, [observation], parameters=marks)


async def played(infer, **how) -> dict:
    found = [await infer(request(step, **how)) for step in range(3)]
    actions = [next(one for one in each.outputs if one.name == "action").as_numpy().tolist() for each in found]
    return {"actions": actions, "version": found[-1].model_version}


async def main() -> None:
    grpc_client = InferenceGRPCClient(url=sys.argv[1])
    rest, base = InferenceRESTClient(RESTConfig(protocol="v2")), f"http://{sys.argv[2]}"

    async def over_http(asked):
        return await rest.infer(base, asked, model_name=asked.model_name)

    ready = [
        await grpc_client.is_server_live(), await grpc_client.is_server_ready(),
        await grpc_client.is_model_ready("policy"),
        await rest.is_server_live(base), await rest.is_server_ready(base), await rest.is_model_ready(base, "policy"),
    ]  # fmt: skip
    answers = {
        "grpc": await played(grpc_client.infer, sequence=False, binary=True),
        "grpc sequence": await played(grpc_client.infer, sequence=True, binary=False),
        "http": await played(over_http, sequence=False, binary=False),
        "http binary": await played(over_http, sequence=False, binary=True),
        "http sequence": await played(over_http, sequence=True, binary=False),
    }
    print(json.dumps({"ready": ready, "answers": answers}))
    await grpc_client.close()
    await rest.close()


asyncio.run(main())
