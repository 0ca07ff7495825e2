import pytest

from orchestrator.launchers.base import NewPod
from orchestrator.launchers.gpu_choice import choose_gpus
from podrace.errors import Unavailable
from podrace.tournament.v1.tournament_pb2 import PodSpec

USABLE = ("a", "b", "c", "d")
HELD = {"old": ("a",), "challenger": ("b",), "other": ("c",)}


def pod(gpus: int, replaces: str = "", retired: tuple[str, ...] = ()) -> NewPod:
    return NewPod("new", "race", PodSpec(gpus=gpus), replaces=replaces, retired=retired)


def test_a_pod_gets_gpus_that_no_other_pod_has() -> None:
    assert choose_gpus(pod(1), USABLE, HELD) == ("d",)
    with pytest.raises(Unavailable, match=r"^a pod needs 2 GPUs, 1 are free$"):
        choose_gpus(pod(2), USABLE, HELD)


def test_a_pod_that_replaces_another_shares_the_gpus_of_those_that_make_room_as_far_as_it_must() -> None:
    assert choose_gpus(pod(1, "old", ("challenger",)), USABLE, HELD) == ("d",)
    assert choose_gpus(pod(2, "old", ("challenger",)), USABLE, HELD) == ("d", "b")
    assert choose_gpus(pod(3, "old", ("challenger",)), USABLE, HELD) == ("d", "b", "a")
    with pytest.raises(Unavailable, match=r"^a pod needs 4 GPUs, 3 are free$"):
        choose_gpus(pod(4, "old", ("challenger",)), USABLE, HELD)


def test_a_shrunken_pod_starts_on_a_gpu_of_the_pod_that_it_replaces() -> None:
    assert choose_gpus(pod(1, "old"), USABLE[:2], {"old": ("a", "b")}) == ("a",)


def test_a_gpu_that_a_third_pod_shares_already_is_not_shared_again() -> None:
    held = {"old": ("a",), "starting": ("a", "b")}
    with pytest.raises(Unavailable, match="0 are free"):
        choose_gpus(pod(1, "old"), USABLE[:2], held)
