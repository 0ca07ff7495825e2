"""Sessions on a live server whose versions are partly recurrent: each request is answered by the version of its key."""

import numpy as np
import pytest
from policy_world import PolicyWorld, act, model, name, observation

from podrace.errors import NOT_OPEN, FailedPrecondition
from podrace.serving.policy_version import PolicyVersion

STEPS = 20


async def actions(stub, session, seed):
    """Versions and actions of an episode."""
    answers = [
        await act(stub, observation(1, seed + step), session_id=session, begin=step == 0) for step in range(STEPS)
    ]
    return [answer.version for answer in answers], [np.frombuffer(answer.actions, "<i8")[0] for answer in answers]


def plain_actions(seed):
    seen = np.concatenate([observation(1, seed + step) for step in range(STEPS)])
    found = PolicyVersion(model(2)).compute(seen, np.zeros((STEPS, 0), np.float32), outputs=False)
    return found["action"].tolist()


def recurrent_actions(seed):
    policy, state, found = PolicyVersion(model(2, "recurrent")), np.zeros((1, 5), np.float32), []
    for step in range(STEPS):
        one = policy.compute(observation(1, seed + step), state, outputs=False)
        state = one["next_state"]
        found.append(one["action"][0])
    return found


@pytest.fixture
async def world(tmp_path, request):
    made = await PolicyWorld.start(tmp_path, request.param)
    yield made
    await made.close()


@pytest.mark.parametrize("world", ["recurrent"], indirect=True)
async def test_a_session_continues_when_a_policy_without_state_replaces_a_recurrent_one(world):
    stub = world.stub("alice")
    await act(stub, observation(1), session_id="episode", begin=True)
    world.export(2)
    await world.follower.poll()
    assert (await act(stub, observation(1), session_id="episode")).version == name(1), "the episode keeps its version"
    assert await actions(stub, "episode", 100) == ([name(2)] * STEPS, plain_actions(100))


@pytest.mark.parametrize("world", ["recurrent"], indirect=True)
async def test_a_share_without_state_answers_its_sessions_while_a_recurrent_policy_serves(world):
    stub = world.stub("alice")
    await world.engine.compare(model(2), share=0.5, shadow=False)
    found = [await actions(stub, f"episode-{number}", 100) for number in range(16)]
    assert {version for versions, _ in found for version in versions} == {name(1), name(2)}
    for versions, taken in found:
        assert len(set(versions)) == 1, "all steps of an episode get answers of the same version"
        assert versions[0] == name(1) or taken == plain_actions(100)


@pytest.mark.parametrize("world", ["logits"], indirect=True)
async def test_sessions_of_a_recurrent_share_keep_their_state_while_a_policy_without_state_serves(world):
    stub = world.stub("alice")
    await world.engine.compare(model(2, "recurrent"), share=0.9999, shadow=False)
    for seed in range(0, 1000, 100):
        assert await actions(stub, f"episode-{seed}", seed) == ([name(2)] * STEPS, recurrent_actions(seed))
    with pytest.raises(FailedPrecondition) as refused:
        await act(stub, observation(1), session_id="another")
    assert refused.value.reason == NOT_OPEN, "a session of a recurrent policy begins with an episode"
