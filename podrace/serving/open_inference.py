"""Translates requests of the Open Inference Protocol, version 2, to requests of the engine; for gRPC and REST.

Inputs, outputs and parameters are stated in the contract (`inference.GRPCInferenceService`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.errors import InvalidArgument, NamedResource, NotFound
from podrace.serving.batcher import ActResult
from podrace.serving.engine import ActInput, PolicyEngine
from podrace.serving.policy_version import PolicyVersion
from podrace.serving.servicer import session_key, session_owner

MODEL, PLATFORM = "policy", "onnxruntime_onnx"
OBSERVATION, STATE, ACTION, NEXT_STATE = "observation", "state", "action", "next_state"
DATA_TYPES: Mapping[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "FP16": np.dtype("<f2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Types of the protocol that observations and actions can have."""
LONGEST_SEQUENCE_ID = 256


@dataclass(frozen=True)
class Inference:
    """A request of either protocol."""

    model: str
    version: str = ""
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    """Outputs to return; empty: all."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def data_type(kind: np.dtype[Any]) -> str:
    """Returns the name of a type in the protocol."""
    return next(name for name, known in DATA_TYPES.items() if known == kind.newbyteorder("<"))


def tensor(name: str, datatype: str, shape: Sequence[int], data: bytes) -> NDArray[Any]:
    """Returns the array of an input whose elements are bytes.

    Raises:
        InvalidArgument: The type is unknown, or the bytes do not have the shape.
    """
    kind = _kind(name, datatype, shape)
    try:
        return np.frombuffer(data, kind).reshape(shape)
    except ValueError:
        raise InvalidArgument(f"input {name!r}: {len(data)} bytes are not {datatype} of shape {list(shape)}") from None


def _kind(name: str, datatype: str, shape: Sequence[int]) -> np.dtype[Any]:
    if datatype not in DATA_TYPES:
        raise InvalidArgument(f"input {name!r}: datatype {datatype!r}; known: {', '.join(DATA_TYPES)}")
    if min(shape, default=0) < 0:
        raise InvalidArgument(f"input {name!r}: shape {list(shape)}: a length is not negative")
    return DATA_TYPES[datatype]


def listed(name: str, datatype: str, shape: Sequence[int], values: Any) -> NDArray[Any]:
    """Returns the array of an input whose elements are listed, nested or flat; raises as `tensor`."""
    kind = _kind(name, datatype, shape)
    try:
        with np.errstate(over="ignore"):  # too large numbers become infinite, which the engine refuses
            return np.array(values, kind).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgument(f"input {name!r}: the data are not {datatype} of shape {list(shape)}") from None


def metadata(engine: PolicyEngine, model: str, version: str) -> dict[str, Any]:
    """Describes a version, with the keys of the protocol.

    Raises:
        NotFound: There is no such model, or the version is not loaded.
    """
    policy = _policy(engine, model, version)
    state = [{"name": STATE, "datatype": "FP32", "shape": [-1, policy.state_size]}] if policy.state_size else []
    others = [one.version for one in engine.loaded() if one.version != engine.record.current]
    return {
        "name": MODEL,
        "versions": [engine.record.current, *others],
        "platform": PLATFORM,
        "inputs": [_described(OBSERVATION, policy.observation_type, policy.observation_shape), *state],
        "outputs": [
            _described(ACTION, policy.action_type, policy.action_shape),
            *({**one, "name": NEXT_STATE} for one in state),
        ],
    }


def is_ready(engine: PolicyEngine, model: str, version: str) -> bool:
    """Whether a version is loaded."""
    try:
        _policy(engine, model, version)
    except NotFound:
        return False
    return True


async def infer(engine: PolicyEngine, asked: Inference, deadline: float) -> tuple[str, dict[str, NDArray[Any]]]:
    """Returns the version that answered, and the outputs by name.

    Raises:
        InvalidArgument: An input, an output or a parameter does not fit.
        PodraceError: As PolicyEngine.act.
    """
    policy = _policy(engine, asked.model, asked.version)
    observation = _observation(policy, asked.inputs)
    session = _sequence(asked.parameters)
    state = asked.inputs.get(STATE)
    if state is not None and not policy.state_size:
        raise InvalidArgument(f"input {STATE!r}: the policy is not recurrent")
    known = [ACTION, *([NEXT_STATE] if policy.state_size and not session else [])]
    policy.check_answer(len(observation), states=NEXT_STATE in (asked.outputs or known))
    if unknown := [name for name in asked.outputs if name not in known]:
        raise InvalidArgument(f"output {unknown[0]!r}: there are {', '.join(known)}")
    begins = np.ones(len(observation), np.bool_) if asked.parameters.get("sequence_start") is True else None
    acted = await engine.act(
        ActInput(
            observation,
            session,
            begins if session else None,
            None if state is None else state.astype(np.float32, copy=False),
            _sampler(asked.parameters),
            asked.version,
            deadline,
            session_owner(),
        )
    )
    if session and asked.parameters.get("sequence_end") is True:
        engine.end_session(session)
    found = _outputs(acted)
    return acted.version, {name: found[name] for name in asked.outputs or known}


def _policy(engine: PolicyEngine, model: str, version: str) -> PolicyVersion:
    if model != MODEL:
        named = NamedResource("model", model[:64])
        raise NotFound(f"model {named.name!r}: the only one is {MODEL!r}", resource=named)
    return engine.policy(version) if version else engine.current


def _described(name: str, kind: np.dtype[Any], shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "datatype": data_type(kind), "shape": [-1, *shape]}


def _observation(policy: PolicyVersion, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    if unknown := [name for name in inputs if name not in (OBSERVATION, STATE)]:
        raise InvalidArgument(f"input {unknown[0]!r}: there are {OBSERVATION}, and {STATE} of recurrent policies")
    if OBSERVATION not in inputs:
        raise InvalidArgument(f"input {OBSERVATION!r} is missing")
    found = inputs[OBSERVATION]
    wanted = (data_type(policy.observation_type), list(policy.observation_shape))
    if (data_type(found.dtype), list(found.shape[1:])) != wanted or not found.size:
        raise InvalidArgument(
            f"input {OBSERVATION!r}: {data_type(found.dtype)} of shape {list(found.shape)}, expected {wanted[0]} of"
            f" shape {['N', *wanted[1]]}"
        )
    return found


def _sequence(parameters: Mapping[str, Any]) -> str:
    """Returns the key of the session of a sequence; empty: none. Triton's clients send 0 for none."""
    found = parameters.get("sequence_id", 0)
    if not isinstance(found, int | str) or len(str(found)) > LONGEST_SEQUENCE_ID:
        raise InvalidArgument(
            f"parameter 'sequence_id': a number, or a text of at most {LONGEST_SEQUENCE_ID} characters"
        )
    return session_key(f"sequence {found}") if found else ""


def _sampler(parameters: Mapping[str, Any]) -> np.random.Generator | None:
    if parameters.get("sampled") is not True:
        return None
    seed = parameters.get("seed")
    if seed is not None and (not isinstance(seed, int) or seed < 0):
        raise InvalidArgument("parameter 'seed': expected an integer of at least 0")
    return np.random.default_rng(seed)


def _outputs(acted: ActResult) -> dict[str, NDArray[Any]]:
    return {ACTION: acted.action, NEXT_STATE: acted.next_state}
