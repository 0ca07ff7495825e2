import random

import pytest

from leaderboard.ranking.checkpoint_quota import Cut, Group, cut_to

ENDED = Group("ended", {"e1": {"e1": 10, "x": 100}, "e2": {"e2": 10, "y": 100, "shared": 1000}})
SNAPSHOTS = Group("snapshots", {"s1": {"s1": 10, "z": 100}, "s2": {"s2": 10, "shared": 1000}})
PROTECTED = [{"p": 10, "x": 100, "w": 500}]


def test_nothing_is_deleted_within_the_quota_or_without_one() -> None:
    total = 10 + 100 + 500 + 10 + 10 + 100 + 1000 + 10 + 100 + 10
    for quota in (total, 0):
        assert cut_to(PROTECTED, [ENDED, SNAPSHOTS], quota) == Cut(left_bytes=total)


def test_groups_and_checkpoints_are_deleted_in_order_until_the_others_fit() -> None:
    everything = cut_to(PROTECTED, [ENDED, SNAPSHOTS], 0).left_bytes
    first = cut_to(PROTECTED, [ENDED, SNAPSHOTS], everything - 1)
    assert dict(first.checkpoints) == {"e1": "ended"}
    assert dict(first.files) == {"e1": 10}, "the file x belongs to a protected checkpoint as well"
    third = cut_to(PROTECTED, [ENDED, SNAPSHOTS], everything - 121)
    assert third.counts == {"ended": 2, "snapshots": 1}
    assert (third.deleted_bytes, third.left_bytes) == (230, everything - 230)


def test_a_file_is_deleted_with_the_last_checkpoint_that_has_it() -> None:
    every = cut_to([], [ENDED, SNAPSHOTS], 1)
    assert every.counts == {"ended": 2, "snapshots": 2}
    assert every.files["shared"] == 1000
    assert "shared" not in cut_to([], [ENDED], 1010).files or cut_to([], [ENDED], 1010).left_bytes <= 1010
    kept = cut_to([{"k": 1, "shared": 1000}], [ENDED, SNAPSHOTS], 1)
    assert "shared" not in kept.files


def test_protected_checkpoints_are_kept_although_they_alone_exceed_the_quota() -> None:
    found = cut_to(PROTECTED, [ENDED, SNAPSHOTS], 1)
    assert found.left_bytes == 610
    assert not found.files.keys() & PROTECTED[0].keys()


def test_what_was_not_deleted_yet_does_not_count() -> None:
    found = cut_to(PROTECTED, [ENDED, SNAPSHOTS], 1)
    part = found.limited_to({"e1", "z"})
    assert part.counts == {"ended": 1}
    assert part.deleted_bytes == 110
    assert found.limited_to(set()) == Cut(left_bytes=found.left_bytes)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_what_the_kept_checkpoints_have(seed: int) -> None:
    draw = random.Random(seed)
    sizes = {f"f{number}": draw.randint(1, 100) for number in range(12)}

    def checkpoints(name: str) -> dict[str, dict[str, int]]:
        return {
            f"{name}{number}": {key: sizes[key] for key in draw.sample(list(sizes), 3)} | {f"{name}{number}": 5}
            for number in range(6)
        }

    protected, groups = list(checkpoints("p").values()), [Group("a", checkpoints("a")), Group("b", checkpoints("b"))]
    quota = draw.randint(1, 1000)
    found = cut_to(protected, groups, quota)
    kept = [
        *protected,
        *(files for one in groups for key, files in one.checkpoints.items() if key not in found.checkpoints),
    ]
    left = {name: size for files in kept for name, size in files.items()}
    assert found.left_bytes == sum(left.values())
    assert not left.keys() & found.files.keys()
    deletable = {key for one in groups for key in one.checkpoints}
    assert found.left_bytes <= quota or found.checkpoints.keys() == deletable
