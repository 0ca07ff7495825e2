"""The engine answers each request by one version, and swaps, rolls back and compares without a failed request."""

import asyncio
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from policies import published

from podrace.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from podrace.policy.loading import onnx_file
from podrace.serving.decisions.gate import GateVerdict
from podrace.serving.engine import ActInput, EngineLimits, PolicyEngine
from podrace.serving.policy_version import PolicyVersion


def model(seed: int, case: str = "logits") -> bytes:
    return onnx_file([published(case, seed).checkpoint])


def name(seed: int) -> str:
    return f"{seed:064x}"


class Gate:
    """Gives a verdict, after it has called `during`."""

    def __init__(self, verdict: GateVerdict) -> None:
        self.verdict, self.judged = verdict, []
        self.during: Callable[[], object] | None = None

    async def judge(self, offered: PolicyVersion, serving: PolicyVersion) -> GateVerdict:
        self.judged.append((offered.version, serving.version))
        if self.during:
            self.during()
        return self.verdict


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def engine():
    made = PolicyEngine(EngineLimits(), clock=Clock())
    yield made
    await made.close()


def observation(rows: int = 1, seed: int = 0):
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


async def test_nothing_is_answered_before_a_version_serves(engine):
    with pytest.raises(NotFound, match="no policy is served yet"):
        await engine.act(ActInput(observation()))


async def test_requests_under_load_are_each_answered_by_one_version_while_versions_are_swapped(engine):
    models = {name(seed): model(seed) for seed in range(6)}
    policies = {version: PolicyVersion(data) for version, data in models.items()}
    await engine.offer(models[name(0)])
    stop, answered = asyncio.Event(), Counter()

    async def client(number: int) -> None:
        seen = observation(4, number)
        while not stop.is_set():
            acted = await engine.act(ActInput(seen))
            wanted = policies[acted.version].compute(seen, np.zeros((4, 0), np.float32), outputs=False)
            assert (acted.action == wanted["action"]).all()
            answered[acted.version] += 1

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    for swap in range(1, 60):
        await engine.offer(models[name(swap % 6)])
        assert engine.record.current == name(swap % 6)
    stop.set()
    await asyncio.gather(*clients)
    assert len(answered) > 1
    assert len(engine.loaded()) == 5


async def test_a_gate_is_asked_about_every_version_but_the_first_and_may_refuse_it():
    gate = Gate(GateVerdict(False, "worse"))
    engine = PolicyEngine(EngineLimits(), clock=Clock(), gate=gate)
    await engine.offer(model(1))
    change = await engine.offer(model(2))
    assert gate.judged == [(name(2), name(1))]
    assert change.reason == "refused: worse"
    assert engine.record.current == name(1)
    assert not engine.wants(name(2))
    await engine.close()


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_verdict_against_a_version_that_no_longer_serves_has_no_effect(accepted):
    gate = Gate(GateVerdict(True, "better"))
    engine = PolicyEngine(EngineLimits(), clock=Clock(), gate=gate)
    await engine.offer(model(1))
    await engine.offer(model(2))
    gate.verdict, gate.during = GateVerdict(accepted, "compared"), lambda: engine.roll_back(name(2))
    with pytest.raises(Aborted, match="examined again"):
        await engine.offer(model(3))
    assert engine.record.current == name(1)
    assert engine.wants(name(3))
    gate.during = None
    await engine.offer(model(3))
    assert gate.judged[-2:] == [(name(3), name(2)), (name(3), name(1))]
    assert engine.record.current == name(3 if accepted else 1)
    await engine.close()


async def test_a_policy_of_other_spaces_is_refused(engine):
    await engine.offer(model(1))
    change = await engine.offer(model(2, "gaussian"))
    assert "another action space" in change.reason
    assert engine.record.current == name(1)
    with pytest.raises(FailedPrecondition, match="another action space"):
        await engine.pin(model(2, "gaussian"))


async def test_a_roll_back_serves_the_version_before_at_once(engine):
    await engine.offer(model(1))
    await engine.offer(model(2))
    engine.roll_back(name(2))
    assert (await engine.act(ActInput(observation()))).version == name(1)
    await engine.offer(model(2))
    assert engine.record.current == name(1)


async def test_both_versions_of_a_comparison_answer_their_share_and_a_session_always_gets_the_same(engine):
    await engine.offer(model(1))
    await engine.compare(model(2), share=0.5, shadow=False)
    found = [(await engine.act(ActInput(observation(), session=str(number)))).version for number in range(200)]
    again = [(await engine.act(ActInput(observation(), session=str(number)))).version for number in range(200)]
    assert found == again
    assert Counter(found)[name(2)] == pytest.approx(100, abs=30)


async def test_a_shadow_computes_every_request_and_its_answers_are_not_sent(engine):
    await engine.offer(model(1))
    await engine.compare(model(2), share=0.0, shadow=True)
    seen: list[int] = []
    shadow = engine.policy(name(2))
    compute = shadow.compute
    shadow.compute = lambda given, *rest, **options: (seen.append(len(given)), compute(given, *rest, **options))[1]
    found = {(await engine.act(ActInput(observation(3)))).version for _ in range(5)}
    while engine._shadows:
        await asyncio.sleep(0)
    assert found == {name(1)}
    assert sum(seen) == 15


async def test_a_session_keeps_its_recurrent_state_and_its_version_until_its_episodes_begin_again(engine):
    await engine.offer(model(1, "recurrent"))
    old, begins = PolicyVersion(model(1, "recurrent")), np.array([True, True])
    state = np.zeros((2, 5), np.float32)
    for step in range(4):
        seen = observation(2, step)
        acted = await engine.act(ActInput(seen, "s", begins if step == 0 else None))
        wanted = old.compute(seen, state, outputs=False)
        state = wanted["next_state"]
        assert (acted.action == wanted["action"]).all()
        assert acted.version == name(1)
        if step == 1:
            await engine.offer(model(2, "recurrent"))
    assert (await engine.act(ActInput(observation(2), "s", begins))).version == name(2)


async def test_the_environments_of_a_session_begin_episodes_one_by_one(engine):
    await engine.offer(model(1, "recurrent"))
    first = await engine.act(ActInput(observation(2, 1), "s", np.array([True, True])))
    second = await engine.act(ActInput(observation(2, 2), "s", np.array([False, True])))
    mixed = np.stack([first.next_state[0], np.zeros(5, np.float32)])
    wanted = PolicyVersion(model(1, "recurrent")).compute(observation(2, 2), mixed, outputs=False)
    assert np.allclose(second.next_state, wanted["next_state"], atol=1e-6)


async def test_a_version_is_unloaded_when_its_last_session_has_expired():
    clock = Clock()
    engine = PolicyEngine(EngineLimits(), clock=clock)
    await engine.offer(model(0, "recurrent"))
    await engine.act(ActInput(observation(), "s", np.array([True])))
    for seed in range(1, 8):
        await engine.offer(model(seed, "recurrent"))
    assert name(0) in {policy.version for policy in engine.loaded()}
    clock.now = 1e6
    engine.tidy()
    assert {policy.version for policy in engine.loaded()} == {name(seed) for seed in range(3, 8)}
    await engine.close()


async def test_the_oldest_sessions_end_when_too_many_versions_are_loaded():
    engine = PolicyEngine(EngineLimits(maximum_versions=6), clock=Clock())
    for seed in range(9):
        await engine.offer(model(seed, "recurrent"))
        await engine.act(ActInput(observation(), f"s{seed}", np.array([True])))
    assert len(engine.loaded()) == 6
    with pytest.raises(FailedPrecondition, match="begin an episode"):
        await engine.act(ActInput(observation(), "s0"))
    await engine.act(ActInput(observation(), "s8"))
    await engine.close()


async def test_a_client_may_keep_the_state_itself(engine):
    await engine.offer(model(1, "recurrent"))
    first = await engine.act(ActInput(observation(2)))
    second = await engine.act(ActInput(observation(2), state=first.next_state))
    assert not np.array_equal(first.next_state, second.next_state)
    with pytest.raises(InvalidArgument, match=r"state: shape \[2, 4\], expected \[2, 5\]"):
        await engine.act(ActInput(observation(2), state=np.zeros((2, 4), np.float32)))


async def test_numbers_that_are_not_finite_are_refused_and_leave_the_session_as_it_was(engine):
    await engine.offer(model(1, "recurrent"))
    begins = np.ones(2, np.bool_)
    for session in ("a", "b"):
        await engine.act(ActInput(observation(2), session, begins))
    wrong = observation(2)
    wrong[1, 0] = np.nan
    with pytest.raises(InvalidArgument, match="observations: row 1 has a number that is not finite"):
        await engine.act(ActInput(wrong, "a"))
    with pytest.raises(InvalidArgument, match="state: row 0 has a number that is not finite"):
        await engine.act(ActInput(observation(1), state=np.full((1, 5), np.inf, np.float32)))
    after = [await engine.act(ActInput(observation(2, 1), session)) for session in ("a", "b")]
    assert np.array_equal(after[0].next_state, after[1].next_state)


async def test_a_policy_that_is_not_recurrent_takes_no_state(engine):
    await engine.offer(model(1))
    with pytest.raises(InvalidArgument, match="state: the policy is not recurrent; leave it out"):
        await engine.act(ActInput(observation(2), state=np.zeros((2, 1), np.float32)))


def test_an_answer_larger_than_a_message_is_refused_before_it_is_computed():
    policy = PolicyVersion(model(1, "recurrent"))
    # An action is an int64, a state five float32.
    policy.check_answer(10, states=True, most_bytes=280)
    policy.check_answer(35, states=False, most_bytes=280)
    with pytest.raises(InvalidArgument, match=r"would have 308 bytes, and .* at most 280; send at most 10 obs"):
        policy.check_answer(11, states=True, most_bytes=280)


async def test_a_policy_of_an_earlier_release_may_be_replaced_by_one_that_says_what_its_rows_are_made_of(engine):
    newer = published("number", 2).checkpoint
    earlier = published("number", 1).checkpoint
    earlier.manifest.policies["agent"].observation_space.ClearField("choices")
    await engine.offer(onnx_file([earlier]))
    assert (await engine.offer(onnx_file([newer]))).record.current == name(2)


async def test_a_request_may_name_the_loaded_version_that_answers(engine):
    await engine.offer(model(1))
    await engine.offer(model(2))
    assert (await engine.act(ActInput(observation(), version=name(1)))).version == name(1)
    with pytest.raises(NotFound, match="is not loaded"):
        await engine.act(ActInput(observation(), version=name(9)))
