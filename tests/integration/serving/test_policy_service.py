"""PolicyService on a live server: acting, sessions, swaps under load, and what operators may change."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np
import pytest
from policy_world import PolicyWorld, act, ask, model, name, observation

from podrace.errors import (
    NOT_OPEN,
    Aborted,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.serving.policy_version import PolicyVersion

SWAPS = 100


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


def discrete(answer: pb.ActResponse):
    return np.frombuffer(answer.actions, "<i8")


async def test_actions_are_those_of_the_exported_policy_and_name_its_version(world):
    seen = observation(5)
    answer = await act(world.stub(), seen)
    wanted = PolicyVersion(model(1)).compute(seen, np.zeros((5, 0), np.float32), outputs=False)
    assert (discrete(answer) == wanted["action"]).all()
    assert answer.version == name(1)


async def test_a_description_states_spaces_and_checkpoints(world):
    policy = (await ask(world.stub().DescribePolicy, pb.DescribePolicyRequest())).policy
    assert (policy.version, policy.state_size, policy.samples) == (name(1), 0, True)
    (member,) = policy.members
    assert (member.agent_id, member.tournament_id, member.algorithm) == ("race-1-a1", "race-1", "ppo")
    assert list(member.policies["agent"].observation_space.shape) == [3]
    with pytest.raises(NotFound, match="is not loaded"):
        await ask(world.stub().DescribePolicy, pb.DescribePolicyRequest(version=name(7)))


async def test_sampled_actions_repeat_with_their_seed(world):
    stub, seen = world.stub(), observation(64)
    sampled = {"mode": pb.ACTION_MODE_SAMPLED}
    first, again = [discrete(await act(stub, seen, seed=5, **sampled)) for _ in range(2)]
    other = discrete(await act(stub, seen, seed=6, **sampled))
    assert (first == again).all()
    assert (first != other).any()


async def test_observations_that_do_not_fit_are_refused_with_what_is_expected(world):
    with pytest.raises(InvalidArgument, match=r"8 bytes are not a number of observations of 12 bytes \(float32"):
        await act(world.stub(), observation()[:, :2])
    with pytest.raises(InvalidArgument, match="row 0 has a number that is not finite"):
        await act(world.stub(), np.full_like(observation(), np.nan))
    with pytest.raises(InvalidArgument, match="mode = 77: this server does not know it"):
        await act(world.stub(), observation(), mode=77)


async def test_an_export_is_served_and_a_damaged_one_is_not(world):
    world.export(2)
    await world.follower.poll()
    assert (await act(world.stub(), observation())).version == name(2)
    (world.folder / "policy.onnx").write_bytes(b"damaged")
    await world.follower.poll()
    assert (await act(world.stub(), observation())).version == name(2)


async def test_requests_during_swaps_neither_fail_nor_mix_two_versions(world):
    policies = {name(seed): PolicyVersion(model(seed)) for seed in range(1, 5)}
    models = [model(seed) for seed in range(1, 5)]
    stop, versions, state = asyncio.Event(), Counter(), np.zeros((16, 0), np.float32)

    async def client(number: int) -> None:
        stub, seen = world.stub(), observation(16, number)
        wanted = {version: one.compute(seen, state, outputs=False)["action"] for version, one in policies.items()}
        while not stop.is_set():
            answer = await act(stub, seen)
            assert (discrete(answer) == wanted[answer.version]).all()
            versions[answer.version] += 1

    clients = [asyncio.create_task(client(number)) for number in range(4)]
    for swap in range(1, SWAPS):
        await world.engine.offer(models[swap % 4])
    stop.set()
    await asyncio.gather(*clients)
    assert len(versions) == 4


async def test_a_session_plays_an_episode_and_survives_a_swap(recurrent):
    stub, policy, state = recurrent.stub("alice"), PolicyVersion(model(1, "recurrent")), np.zeros((2, 5), np.float32)
    for step in range(5):
        seen = observation(2, step)
        answer = await act(stub, seen, session_id="episode", begin=step == 0)
        wanted = policy.compute(seen, state, outputs=False)
        state = wanted["next_state"]
        assert (discrete(answer) == wanted["action"]).all()
        assert (answer.version, answer.next_state) == (name(1), b"")
        if step == 2:
            recurrent.export(2, "recurrent")
            await recurrent.follower.poll()
    assert (await act(stub, observation(2), session_id="episode", begin=True)).version == name(2)


async def test_a_session_belongs_to_its_caller_and_ends(recurrent):
    alice, bob = recurrent.stub("alice"), recurrent.stub("bob")
    await act(alice, observation(), session_id="episode", begin=True)
    with pytest.raises(FailedPrecondition) as raised:
        await act(bob, observation(), session_id="episode")
    assert raised.value.reason == NOT_OPEN
    await ask(alice.EndSession, pb.EndSessionRequest(session_id="episode"))
    with pytest.raises(FailedPrecondition, match="begin an episode"):
        await act(alice, observation(), session_id="episode")


async def test_single_environments_of_a_session_begin_episodes(recurrent):
    stub = recurrent.stub()
    await act(stub, observation(2, 1), session_id="s", begin_lanes=[0, 1])
    mixed = await act(stub, observation(2, 2), session_id="s", begin_lanes=[1])
    alone = await act(stub, observation(2, 2)[1:])
    assert discrete(mixed)[1] == discrete(alone)[0]
    with pytest.raises(InvalidArgument, match="begin_lanes = 2: there are 2"):
        await act(stub, observation(2), session_id="s", begin_lanes=[2])


async def test_a_caller_may_keep_the_recurrent_state(recurrent):
    stub = recurrent.stub()
    first = await act(stub, observation(2))
    assert len(first.next_state) == 2 * 5 * 4
    await act(stub, observation(2), state=first.next_state)
    with pytest.raises(InvalidArgument, match="39 bytes are not 2 states"):
        await act(stub, observation(2), state=first.next_state[1:])


async def test_a_pin_stays_until_the_source_is_followed_again(world):
    stub = world.stub()
    pinned = await ask(stub.PinVersion, pb.PinVersionRequest(version=name(1)))
    assert pinned.serving.pinned
    world.export(2)
    await world.follower.poll()
    assert (await act(stub, observation())).version == name(1)
    await ask(stub.FollowSource, pb.FollowSourceRequest())
    await world.follower.poll()
    assert (await act(stub, observation())).version == name(2)
    with pytest.raises(NotFound, match="has 000000000000"):
        await ask(stub.PinVersion, pb.PinVersionRequest(version="f" * 64))


async def test_a_roll_back_returns_to_the_version_before_and_is_not_undone_by_the_source(world):
    stub = world.stub()
    world.export(2)
    await world.follower.poll()
    with pytest.raises(Aborted):
        await ask(stub.RollBack, pb.RollBackRequest(from_version=name(1)))
    serving = (await ask(stub.RollBack, pb.RollBackRequest(from_version=name(2)))).serving
    assert serving.version == name(1)
    assert [(one.version, one.reason) for one in serving.refused] == [(name(2), "rolled back")]
    await world.follower.poll()
    assert (await act(stub, observation())).version == name(1)


async def test_two_versions_share_the_requests_until_the_comparison_ends(world):
    stub = world.stub()
    world.export(2)
    await world.follower.poll()
    request = pb.StartComparisonRequest(version=name(1), share=0.5)
    serving = (await ask(stub.StartComparison, request)).serving
    assert (serving.comparison.version, serving.comparison.share) == (name(1), 0.5)
    found = Counter([(await act(stub, observation())).version for _ in range(60)])
    assert set(found) == {name(1), name(2)}
    await ask(stub.EndComparison, pb.EndComparisonRequest())
    assert {(await act(stub, observation())).version for _ in range(20)} == {name(2)}
    serving = (await ask(stub.GetServing, pb.GetServingRequest())).serving
    assert (serving.version, serving.HasField("comparison"), list(serving.previous_versions)) == (
        *(name(2), False),
        [name(1)],
    )


async def test_a_damaged_version_cannot_be_pinned(world):
    (world.folder / "policy.onnx").write_bytes(b"damaged")
    with pytest.raises(DataLoss):
        await ask(world.stub().PinVersion, pb.PinVersionRequest(version=name(3)))
