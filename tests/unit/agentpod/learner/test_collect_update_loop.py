"""The collect-update loop grants a slot to the workers before an update can read the memory."""

import asyncio
from types import SimpleNamespace

from agentpod.compute_thread import ComputeThread
from agentpod.learner.collect_update_loop import CollectUpdateLoop
from agentpod.session.role_client import CollectedRollout


class ExperienceSlots:
    """Records the operations on its slots, in order."""

    def __init__(self, notes):
        self.notes, self.granted = notes, 0

    def grant(self):
        self.granted += 1
        self.notes.append(f"grant {self.granted}")
        return self.granted

    def receive(self, grant):
        self.notes.append(f"receive {grant}")
        return grant

    def release(self, grant):
        self.notes.append(f"release {grant}")


class Roles:
    """Workers that fill every slot immediately."""

    def __init__(self, notes):
        self.experience, self.notes = ExperienceSlots(notes), notes
        self.ring = SimpleNamespace(publish=lambda flat, version: notes.append(f"publish {version}"))

    async def collect(self, grant, rollout):
        return CollectedRollout(grant, rollout, 8, [])


async def test_the_next_slot_is_granted_before_an_update_can_sample_the_memory():
    notes = []

    def update(experience):
        notes.append(f"update {experience}")
        return {}

    compute = ComputeThread()
    algorithm = SimpleNamespace(
        update=update, policy=SimpleNamespace(flat=None), network=SimpleNamespace(hidden_sizes=(8,))
    )
    stop = asyncio.get_running_loop().create_future()
    loop = CollectUpdateLoop(Roles(notes), compute, algorithm, SimpleNamespace(rollouts=0), stop, overlap=True)
    for more in (True, False):
        learned = await loop.step(lambda _, more=more: more)
        assert learned is not None
        loop.publish()
    assert notes == [
        "grant 1",
        "receive 1",
        "grant 2",
        "update 1",
        "release 1",
        "publish 1",
        "receive 2",
        "update 2",
        "release 2",
        "publish 2",
    ]
    assert (learned.policy_lag, loop.rollouts) == (0, 2)
    compute.close()
