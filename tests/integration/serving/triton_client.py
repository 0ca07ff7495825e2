"""Acts with Triton's client over gRPC and HTTP: `python triton_client.py GRPC_ADDRESS HTTP_ADDRESS`.

Runs in a separate environment, because that client needs another protobuf. Prints what it got as JSON.
"""

import json
import sys

import numpy
import tritonclient.grpc
import tritonclient.http


def played(library, address: str, **options) -> dict:
    client = library.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("policy")
    seen = numpy.linspace(-1.0, 1.0, 6, dtype=numpy.float32).reshape(2, 3)
    observation = library.InferInput("observation", [2, 3], "FP32")
    observation.set_data_from_numpy(seen)
    answers = []
    for step in range(3):
        sequence = {"sequence_id": 5, "sequence_start": step == 0, "sequence_end": step == 2} if options else {}
        found = client.infer("policy", [observation], **sequence)
        answers.append(found.as_numpy("action").tolist())
    answer = found.get_response()
    version = answer["model_version"] if isinstance(answer, dict) else answer.model_version
    try:
        client.infer("other", [observation])
        error = ""
    except tritonclient.utils.InferenceServerException as raised:
        error = raised.message()
    client.close()
    return {"actions": answers, "version": version, "error": error}


print(
    json.dumps(
        {
            "grpc": played(tritonclient.grpc, sys.argv[1]),
            "http": played(tritonclient.http, sys.argv[2]),
            "grpc sequence": played(tritonclient.grpc, sys.argv[1], sequence=True),
            "http sequence": played(tritonclient.http, sys.argv[2], sequence=True),
        }
    )
)
