"""A pod writes the manifests that it submits. It cannot win with one that contradicts its agent or itself.

Before, a manifest counted if it named the agent and the digest of some policy: a score over one episode that was
never played, with a policy that was not in the store, led the board.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from policy_files import manifest_of, policy_file, policy_shapes, safetensors

from leaderboard.checkpoints import reader
from leaderboard.checkpoints.reader import ByteBudget, CheckpointReader, read_submitted
from leaderboard.generator import Generator
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store import records
from leaderboard.store.refusal_records import MOST_REFUSALS, refusals_after
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest, Part
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import FORMAT_VERSION, manifest_bytes
from podrace.checkpoint_store.publish import claim, publish
from podrace.database import Database
from podrace.digests import digest
from podrace.errors import BAD_CHECKPOINT, BAD_DIGEST, NON_FINITE, InvalidArgument, NotFound, PodraceError, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    GenerateAgentRequest,
    SubmitCandidateRequest,
    SubmitSnapshotRequest,
)
from podrace.specification import resolve as specification

NAME = "cartpole-abc123"


class Service:
    """A leaderboard, and what a pod does with its store."""

    def __init__(self, folder: Path) -> None:
        self.state = Database.open(folder / "l.sqlite", DATABASE_FORMAT, time.time)
        self.store = FolderStore(folder / "store")
        self.updater = Updater(self.state, self.store, SubmissionWatch())
        self.generator = Generator(self.state)
        self.snapshots = SnapshotRecorder(self.state, self.store)

    async def agent(self, number: int = 0, **sections: Any) -> Agent:
        values = {
            "environment": {"id": "CartPole-v1", "count": 8},
            "algorithms": {"ppo": {}},
            "objective": {"environment_steps": 1_000_000},
            "assignment": {"environment_steps": 20_000},
            "evaluation": {"episodes": 16},
            "evolution": {"strategy": "tournament", "initial_agents": 1, "fresh_probability": 0.0},
        }
        spec = specification.resolve(specification.parse(values | sections, source="test"))
        made = await self.generator.generate(
            GenerateAgentRequest(request_id=f"{NAME}-a{number}", tournament_id=NAME, spec=spec, number=number)
        )
        assert isinstance(made, Agent)
        return made

    def published(self, agent: Agent, manifest: Manifest, policy: bytes, epoch: int = 1) -> SubmitCandidateRequest:
        claim(self.store, agent.agent_id, epoch)
        name = publish(self.store, agent.agent_id, epoch, {"policy": policy}, manifest)
        return submission(agent, name, epoch)

    async def refusals(self) -> list[Any]:
        return await self.state.transact(refusals_after, NAME, 0)

    async def board(self) -> list[str]:
        return [one.agent_id for one in await self.state.transact(records.read_board, NAME)]


def submission(agent: Agent, manifest_digest: str, epoch: int = 1) -> SubmitCandidateRequest:
    checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=manifest_digest)
    return SubmitCandidateRequest(request_id=manifest_digest, checkpoint=checkpoint, lease_epoch=epoch)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path)
    yield made
    await made.updater.close()
    made.state.close()


async def test_a_checkpoint_that_says_nothing_wrong_enters_the_board(service: Service) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    await service.updater.submit(service.published(agent, manifest_of(agent, policy, 5.0), policy))
    assert await service.board() == [agent.agent_id]
    assert await service.refusals() == []


INVENTED: list[tuple[dict[str, Any], str, str]] = [
    ({"evaluation": {"episode_returns": [1.0] * 16}, "variance": 0.0}, "evaluation.mean_return = 500", BAD_CHECKPOINT),
    (
        {"evaluation": {"episode_returns": [400.0, 600.0] * 8}, "variance": 0.0},
        "evaluation.variance = 0: that of the episode returns is 10666",
        BAD_CHECKPOINT,
    ),
    ({"episodes": 1, "variance": 0.0}, "evaluation.episodes = 1: the specification allows 8 to 16", BAD_CHECKPOINT),
    ({"episodes": 2**40}, "the specification allows 8 to 16", BAD_CHECKPOINT),
    (
        {"evaluation": {"episode_returns": [500.0] * 16, "episode_folds": [1]}, "variance": 0.0},
        "episode_folds",
        BAD_CHECKPOINT,
    ),
    (
        {"evaluation": {"objective": "sharpe_ratio"}},
        "evaluation.objective = 'sharpe_ratio': expected ''",
        BAD_CHECKPOINT,
    ),
    ({"evaluation": {"epoch": 8}}, "expected different ones below 8", BAD_CHECKPOINT),
    ({"evaluation": {"mean_length_steps": -1.0}}, "mean_length_steps = -1 is negative", BAD_CHECKPOINT),
    ({"variance": math.inf}, "is not finite", NON_FINITE),
    ({"environment_steps": 10**9}, "environment_steps = 1000000000: the agent can train at most 40000", BAD_CHECKPOINT),
    (
        {"lineage_environment_steps": 5},
        "lineage_environment_steps = 5: expected 1000 of the agent and 0",
        BAD_CHECKPOINT,
    ),
    ({"lineage_environment_steps": 2**62}, "lineage_environment_steps", BAD_CHECKPOINT),
    ({"seed": 3}, "seed = 3: expected", BAD_CHECKPOINT),
    ({"starting_manifest_digest": "ab" * 32}, "starting_manifest_digest", BAD_CHECKPOINT),
    ({"mate_manifest_digests": ["ab" * 32]}, "mate_manifest_digests", BAD_CHECKPOINT),
    ({"algorithm": "sac"}, "algorithm = 'sac': expected 'ppo'", BAD_CHECKPOINT),
    ({"tournament_id": "another"}, "tournament_id = 'another'", BAD_CHECKPOINT),
    ({"policy_digest": "cd" * 32}, "score the policy that is published", BAD_DIGEST),
]


@pytest.mark.parametrize(("changes", "line", "reason"), INVENTED)
async def test_a_manifest_that_contradicts_its_agent_or_itself_is_refused_and_recorded(
    service: Service, changes: dict[str, Any], line: str, reason: str
) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    request = service.published(agent, manifest_of(agent, policy, 500.0, **changes), policy)
    for _ in range(3):
        with pytest.raises(PodraceError) as refused:
            await service.updater.submit(request)
        assert line in refused.value.message
        assert refused.value.reason == reason
    (recorded,) = await service.refusals()
    assert (recorded.number, recorded.agent_id, recorded.error_reason) == (1, agent.agent_id, reason)
    assert line in recorded.message
    assert recorded.manifest_digest == request.checkpoint.manifest_digest
    assert await service.board() == []


async def test_other_hyperparameters_than_those_of_the_agent_are_refused(service: Service) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    manifest = manifest_of(agent, policy, 5.0)
    manifest.hyperparameters["learning_rate"] = 0.9
    with pytest.raises(InvalidArgument, match="hyperparameters differ from those of the agent: 'learning_rate'"):
        await service.updater.submit(service.published(agent, manifest, policy))


SHAPES: list[tuple[Callable[[dict[str, list[int]]], None], str]] = [
    (lambda shapes: shapes.update({"actor.1.weight": [32, 64], "actor.1.bias": [32]}), r"actor.1.weight has the shape"),
    (lambda shapes: shapes.pop("actor.1.bias"), "has no tensor 'actor.1.bias'"),
    (lambda shapes: shapes.update({"payload": [1000]}), "has tensors that a policy does not have, such as 'payload'"),
    (lambda shapes: shapes.update({"observation_mean": [7]}), "observation_mean has the shape"),
    (lambda shapes: shapes.update({"actor.torso.0.weight": [1]}), "has convolutions, and torso is 'none'"),
    (lambda shapes: shapes.update({"actor.0.weight": [64, 9]}), "actor.0.weight has the shape"),
    (lambda shapes: shapes.update({"log_std": [1, 1]}), "log_std does not have the rank 1"),
]


@pytest.mark.parametrize(("change", "line"), SHAPES)
async def test_a_policy_of_another_shape_than_the_hyperparameters_require_is_refused(
    service: Service, change: Callable[[dict[str, list[int]]], None], line: str
) -> None:
    agent = await service.agent()
    shapes = policy_shapes(agent)
    change(shapes)
    policy = safetensors(shapes)
    with pytest.raises(InvalidArgument, match=line) as refused:
        await service.updater.submit(service.published(agent, manifest_of(agent, policy, 5.0), policy))
    assert refused.value.reason == BAD_CHECKPOINT


def _header(entries: Any, data: bytes = b"") -> bytes:
    described = json.dumps(entries).encode()
    return len(described).to_bytes(8, "little") + described + data


@pytest.mark.parametrize(
    "data",
    [
        b"no safetensors file",
        (2**62).to_bytes(8, "little") + b"{}",
        b"\x02\x00\x00\x00\x00\x00\x00\x00[]",
        b"\x80\x96\x98\x00\x00\x00\x00\x00" + b"[" * 10_000_000,
        _header({"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, bytes(8)),
        _header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
        _header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4)),
        _header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)),
        _header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(8)),
        _header({"a": 5}),
        _header({"a": {"dtype": "F32", "shape": [2**70], "data_offsets": [0, 2**72]}}),
    ],
)
async def test_a_file_that_is_no_policy_is_refused(service: Service, data: bytes) -> None:
    agent = await service.agent()
    with pytest.raises(InvalidArgument, match=r"parts\['policy'\]"):
        await service.updater.submit(service.published(agent, manifest_of(agent, data, 5.0), data))
    assert len(await service.refusals()) == 1


async def test_a_policy_that_is_not_in_the_store_is_not_scored(service: Service) -> None:
    agent = await service.agent()
    claim(service.store, agent.agent_id, 1)
    manifest = manifest_of(agent, b"never stored", 5.0, format_version=FORMAT_VERSION, lease_epoch=1)
    manifest.agent_id = agent.agent_id
    manifest.parts.append(Part(name="policy", digest=digest(b"never stored"), size_bytes=12))
    with pytest.raises(NotFound):
        await service.updater.submit(submission(agent, service.store.put_object(manifest_bytes(manifest))))


async def test_a_part_may_be_listed_once_only(service: Service) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    claim(service.store, agent.agent_id, 1)
    service.store.put_object(policy)
    manifest = manifest_of(agent, policy, 5.0, format_version=FORMAT_VERSION, lease_epoch=1)
    manifest.agent_id = agent.agent_id
    for _ in range(2):
        manifest.parts.append(Part(name="policy", digest=digest(policy), size_bytes=len(policy)))
    with pytest.raises(InvalidArgument, match="list each name once"):
        await service.updater.submit(submission(agent, service.store.put_object(manifest_bytes(manifest))))


async def test_an_object_that_is_larger_than_any_manifest_is_not_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGEST_MANIFEST_BYTES", 1000)
    agent = await service.agent()
    claim(service.store, agent.agent_id, 1)
    large = service.store.put_object(b"{" + b" " * 1000 + b"}")
    with pytest.raises(InvalidArgument, match="has 1002 bytes; at most 1000 are read"):
        await service.updater.submit(submission(agent, large))


async def test_a_checkpoint_of_an_epoch_that_its_agent_has_not_had_is_refused(service: Service) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    request = service.published(agent, manifest_of(agent, policy, 5.0), policy, epoch=5)
    claim(service.store, agent.agent_id, 6)
    request.lease_epoch = 6
    await service.updater.submit(request)
    claim(service.store, agent.agent_id, 7)
    manifest = manifest_of(agent, policy, 6.0, format_version=FORMAT_VERSION, lease_epoch=900)
    manifest.agent_id = agent.agent_id
    manifest.parts.append(Part(name="policy", digest=digest(policy), size_bytes=len(policy)))
    ahead = submission(agent, service.store.put_object(manifest_bytes(manifest)), 7)
    with pytest.raises(InvalidArgument, match="lease_epoch = 900: expected 1 to 7"):
        await service.updater.submit(ahead)


async def test_a_child_counts_the_steps_of_the_checkpoint_that_it_started_from(service: Service) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    await service.updater.submit(service.published(agent, manifest_of(agent, policy, 5.0), policy))
    child = await service.agent(1)
    assert child.HasField("starting_checkpoint")
    policy = policy_file(child, "child")
    few = manifest_of(child, policy, 6.0, lineage_environment_steps=1000)
    with pytest.raises(InvalidArgument, match="expected 1000 of the agent and 1000 that it started with"):
        await service.updater.submit(service.published(child, few, policy))
    right = manifest_of(child, policy, 6.0, lineage_environment_steps=2000)
    await service.updater.submit(service.published(child, right, policy))


async def test_a_snapshot_is_checked_like_a_candidate(service: Service) -> None:
    agent = await service.agent()
    claim(service.store, agent.agent_id, 1)
    policy = safetensors({"actor.0.weight": [1, 1]})
    manifest = manifest_of(agent, policy, 5.0, format_version=FORMAT_VERSION, lease_epoch=1, snapshot=True)
    manifest.agent_id = agent.agent_id
    manifest.ClearField("evaluation")
    manifest.parts.append(Part(name="policy", digest=service.store.put_object(policy), size_bytes=len(policy)))
    name = service.store.put_object(manifest_bytes(manifest))
    request = SubmitSnapshotRequest(
        request_id="s", checkpoint=Checkpoint(agent_id=agent.agent_id, manifest_digest=name), lease_epoch=1, number=1
    )
    with pytest.raises(InvalidArgument, match="the hyperparameters of its agent require"):
        await service.snapshots.submit(request)
    with pytest.raises(InvalidArgument, match=r"is a snapshot|the hyperparameters of its agent require"):
        await service.updater.submit(submission(agent, name))


async def test_refusals_are_bounded_and_listed_in_pages(service: Service) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    for number in range(3):
        manifest = manifest_of(agent, policy, 5.0, seed=agent.seed + 1 + number)
        with pytest.raises(InvalidArgument):
            await service.updater.submit(service.published(agent, manifest, policy))
    assert [one.number for one in await service.refusals()] == [1, 2, 3]
    assert [one.number for one in await service.state.transact(refusals_after, NAME, 2)] == [3]
    assert MOST_REFUSALS <= 1000


# --- a slow store ------------------------------------------------------------------------------------------------


class SlowStore(FolderStore):
    """A store whose reads wait until they are let through."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open = threading.Event()

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        self.open.wait(30.0)
        return super().get_object(name, largest_bytes)


async def test_a_store_that_does_not_answer_costs_a_submission_its_deadline_and_nothing_else(
    service: Service, tmp_path: Path
) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    request = service.published(agent, manifest_of(agent, policy, 5.0), policy)
    slow = SlowStore(tmp_path / "store")
    checkpoints = CheckpointReader(slow, deadline_seconds=0.05)
    try:
        many = [asyncio.create_task(checkpoints.read(request)) for _ in range(20)]
        # The event loop and the database answer meanwhile.
        assert await service.board() == []
        answers = await asyncio.gather(*many, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) and "submit it again" in answer.message for answer in answers)
    finally:
        slow.open.set()
        checkpoints.close()
    assert read_submitted(service.store, request, ByteBudget(10**6)).manifest.agent_id == agent.agent_id


class CrowdedStore(FolderStore):
    """A store whose first read of a policy waits until all submissions have read their manifests."""

    def __init__(self, folder: Path, policy: str, submissions: int) -> None:
        super().__init__(folder)
        self.policy, self.submissions = policy, submissions
        self.manifests = threading.Semaphore(0)
        self.reading, self.alone, self.bounds = threading.Lock(), list[bool](), set[int | None]()

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        if name != self.policy:
            self.manifests.release()
            return super().get_object(name, largest_bytes)
        first = not self.alone
        self.alone.append(self.reading.acquire(blocking=False))
        self.bounds.add(largest_bytes)
        for _ in range(self.submissions if first else 0):
            self.manifests.acquire(timeout=10.0)
        data = super().get_object(name, largest_bytes)
        if self.alone[-1]:
            self.reading.release()
        return data


async def test_the_policies_that_are_read_at_the_same_time_have_no_more_bytes_than_one_may_have(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    monkeypatch.setattr(reader, "LARGEST_POLICY_BYTES", len(policy))
    request = service.published(agent, manifest_of(agent, policy, 5.0), policy)
    store = CrowdedStore(tmp_path / "store", digest(policy), submissions=4)
    checkpoints = CheckpointReader(store)
    try:
        await asyncio.gather(*(checkpoints.read(request) for _ in range(4)))
    finally:
        checkpoints.close()
    assert store.alone == [True] * 4
    assert store.bounds == {len(policy)}


async def test_a_policy_that_is_stated_to_be_too_large_is_not_read(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await service.agent()
    policy = policy_file(agent)
    monkeypatch.setattr(reader, "LARGEST_POLICY_BYTES", len(policy) - 1)
    request = service.published(agent, manifest_of(agent, policy, 5.0), policy)
    with pytest.raises(InvalidArgument, match=f"has {len(policy)} bytes; at most {len(policy) - 1} are read"):
        await service.updater.submit(request)
