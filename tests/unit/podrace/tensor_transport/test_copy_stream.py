"""Copies on another stream of a GPU, with fake streams."""

import threading

import pytest
import torch
from fake_streams import FakeCuda

from podrace.tensor_transport.copy_stream import CopyStream


def test_another_thread_waits_for_copies_on_the_gpu_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda().install(monkeypatch)
    copies = CopyStream(torch.device("cuda:3"))
    with copies.following():
        torch.zeros(1)
    thread = threading.Thread(target=copies.mark(), name="waits")
    thread.start()
    thread.join()
    assert (cuda.waits, cuda.devices) == (["waits"], [("wait", 3)])


def test_without_copies_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda().install(monkeypatch)
    CopyStream(torch.device("cuda:3")).mark()()
    assert cuda.devices == []
