"""Judges the checkpoint that a pod submitted: its manifest, its parts and its score."""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator

from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.checkpoint_store.manifest import canonical_json
from podrace.conformance.findings import Judge
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment

Read = Callable[[str], bytes | None]
"""Returns an object by its digest; None if there is none."""


def judge_submission(judge: Judge, read: Read, assignment: Assignment, manifest_digest: str) -> None:
    """Judges a submitted checkpoint."""
    data = read(manifest_digest)
    problem = f"the manifest {manifest_digest} is not in the store when it is submitted"
    judge.require("parts-first", data is not None, problem)
    assert data is not None
    judge.require(
        "canonical-json", hashlib.sha256(data).hexdigest() == manifest_digest, "a manifest has another digest"
    )
    manifest = _parsed(judge, data)
    judge.expect("canonical-json", canonical_json(manifest) == data, _difference(canonical_json(manifest), data))
    for problem in _contradictions(manifest, assignment):
        judge.expect("manifest", False, problem)
    judge.expect("manifest", True, "")
    for part in manifest.parts:
        if part.name.startswith("replay."):
            continue
        content = read(part.digest)
        found = "missing" if content is None else f"{len(content)} bytes"
        good = content is not None and len(content) == part.size_bytes
        judge.expect("parts-first", good, f"the part '{part.name}' of {part.size_bytes} bytes is {found}")
    policies = [part.digest for part in manifest.parts if part.name == "policy"]
    scored = manifest.evaluation.policy_digest
    judge.expect("scored-policy", policies == [scored], f"policy_digest is '{scored}', the policy part is {policies}")


def _parsed(judge: Judge, data: bytes) -> Manifest:
    try:
        return json_format.Parse(data, Manifest(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        judge.require("canonical-json", False, f"a manifest cannot be read: {str(error)[:200]}")
        raise


def _difference(wanted: bytes, found: bytes) -> str:
    at = next((n for n, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]), len(wanted))
    shown = (text[max(0, at - 20) : at + 20].decode(errors="replace") for text in (found, wanted))
    return "the manifest differs from canonical JSON at byte {}: '{}' instead of '{}'".format(at, *shown)


def _contradictions(manifest: Manifest, assignment: Assignment) -> Iterator[str]:
    agent = assignment.train
    wanted = {
        "format_version": 1,
        "tournament_id": assignment.tournament_id,
        "agent_id": agent.agent_id,
        "algorithm": agent.algorithm,
        "seed": agent.seed,
        "lease_epoch": assignment.lease_epoch,
    }
    for name, value in wanted.items():
        if getattr(manifest, name) != value:
            yield f"{name} of the manifest is {getattr(manifest, name)!r} instead of {value!r}"
    if manifest.hyperparameters != agent.hyperparameters:
        yield "hyperparameters of the manifest are not those of the agent"
    if not manifest.HasField("evaluation"):
        yield "the manifest has no evaluation"
        return
    score = manifest.evaluation
    if not math.isfinite(score.mean_return) or not score.episodes:
        yield f"mean_return is {score.mean_return} over {score.episodes} episodes"
    returns = list(score.episode_returns)
    if returns and not math.isclose(statistics.fmean(returns), score.mean_return, rel_tol=1e-6, abs_tol=1e-6):
        yield f"mean_return is {score.mean_return:g}, the mean of the listed returns is {statistics.fmean(returns):g}"


def policy_digest(read: Read, manifest_digest: str) -> str:
    """Returns the digest of the policy of a stored checkpoint; empty if the manifest cannot be read."""
    data = read(manifest_digest) or b"{}"
    try:
        parts = json.loads(data)["parts"]
        return next((str(part["digest"]) for part in parts if part["name"] == "policy"), "")
    except (ValueError, KeyError, TypeError):
        return ""


def wrong_evaluation(found: Evaluation, episodes: int, digest: str) -> Iterator[str]:
    """Yields what is wrong with the result of an evaluation.

    Args:
        found: The result.
        episodes: Number of episodes that were to be finished.
        digest: Digest of the policy that was to be scored.
    """
    if found.episodes != episodes:
        yield f"it has {found.episodes} episodes instead of {episodes}"
    if not math.isfinite(found.mean_return):
        yield f"mean_return is {found.mean_return}"
    if found.policy_digest != digest:
        yield f"policy_digest is '{found.policy_digest}', that of the policy is '{digest}'"
