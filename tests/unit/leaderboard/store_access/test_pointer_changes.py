"""Tests which pointers a pod may set."""

import pytest

from leaderboard.store_access.pointer_changes import check_change, check_manifest
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.digests import digest
from podrace.errors import FailedPrecondition, InvalidArgument

AGENT, TOURNAMENT = "ant-x1-a7", "ant-x1"
OLD, NEW, EARLIER = (digest(text) for text in (b"old", b"new", b"earlier"))


def pointer(lease_epoch: int, manifest_digest: str = "", previous: str = "") -> Pointer:
    return Pointer(
        agent_id=AGENT, lease_epoch=lease_epoch, manifest_digest=manifest_digest, previous_manifest_digest=previous
    )


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (pointer(0), pointer(2)),
        (pointer(1, OLD, EARLIER), pointer(2, OLD, EARLIER)),
        (pointer(2, OLD, EARLIER), pointer(2, OLD, EARLIER)),
        (pointer(2), pointer(2, NEW)),
        (pointer(2, OLD, EARLIER), pointer(2, NEW, OLD)),
    ],
)
def test_a_claim_and_a_publication_are_allowed(present: Pointer, wanted: Pointer) -> None:
    check_change(present, wanted, 2)


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (pointer(2, OLD), pointer(3, OLD)),
        (pointer(2, OLD, EARLIER), pointer(2)),
        (pointer(2, OLD, EARLIER), pointer(2, OLD)),
        (pointer(2, OLD, EARLIER), pointer(2, NEW, EARLIER)),
        (pointer(2, OLD, EARLIER), pointer(1, NEW, OLD)),
        (pointer(2), Pointer(agent_id="ant-x1-a8", lease_epoch=2)),
    ],
)
def test_another_pointer_is_refused(present: Pointer, wanted: Pointer) -> None:
    with pytest.raises((InvalidArgument, FailedPrecondition)):
        check_change(present, wanted, 2)


@pytest.mark.parametrize("wanted", [pointer(2, OLD), pointer(2, NEW, OLD)])
def test_a_pod_with_a_lower_epoch_changes_nothing(wanted: Pointer) -> None:
    with pytest.raises(FailedPrecondition, match="epoch 2 is stale, epoch 3 holds it") as refusal:
        check_change(pointer(3, OLD), wanted, 2)
    assert refusal.value.reason == "ERROR_REASON_STALE_EPOCH"


def test_an_agent_is_claimed_before_something_is_published() -> None:
    with pytest.raises(FailedPrecondition, match="claim the agent first"):
        check_change(pointer(1, OLD), pointer(2, NEW, OLD), 2)


OWN = {"tournament_id": TOURNAMENT, "agent_id": AGENT, "lease_epoch": 2}


@pytest.mark.parametrize(
    "changed",
    [{"tournament_id": "ant-y2"}, {"agent_id": "ant-x1-a8"}, {"lease_epoch": 1}, {"snapshot": True}],
)
def test_only_a_checkpoint_of_the_agent_under_its_epoch_is_published(changed: dict[str, object]) -> None:
    check_manifest(Manifest(**OWN), NEW, tournament_id=TOURNAMENT, pointer=pointer(2, NEW))
    with pytest.raises(InvalidArgument, match=NEW):
        check_manifest(Manifest(**OWN | changed), NEW, tournament_id=TOURNAMENT, pointer=pointer(2, NEW))
