"""Tests the plane `shared`: files in memory, their removal, and the space they take."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import torch

from podrace.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport import shared
from podrace.tensor_transport.codec import MAXIMUM_TENSOR_BYTES, spec_of
from podrace.tensor_transport.probe import PROBE_SPEC, write_probe
from podrace.tensor_transport.shared import FOLDER, SharedPlane

REWARD = spec_of("reward", torch.zeros(1000))

PEER_PROGRAM = """
import sys
from pathlib import Path
from podrace.errors import FailedPrecondition
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.shared import SharedPlane

plane = SharedPlane("podrace-peer-", Path(sys.argv[1]))
for line in sys.stdin:
    refs = [TensorRef.FromString(bytes.fromhex(ref)) for ref in line.split()]
    try:
        tensors = plane.open(refs)
        answer = float(tensors["probe"].sum())
        tensors["reward"].fill_(3.0)
        print(answer, flush=True)
    except FailedPrecondition as error:
        print(error.message, flush=True)
"""


def bytes_spec(name: str, size: int) -> TensorSpec:
    return TensorSpec(name=name, data_type=tensor_pb2.DATA_TYPE_UINT8, shape=[size], layout_version=1)


def bytes_specs(size: int) -> list[TensorSpec]:
    """Divides a size that may be above the limit of one tensor into several tensors."""
    starts = range(0, size, MAXIMUM_TENSOR_BYTES)
    return [bytes_spec(f"bytes_{start}", min(size - start, MAXIMUM_TENSOR_BYTES)) for start in starts]


def mappings_of(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


def open_files_of(folder: Path) -> int:
    return sum(str(folder) in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


@pytest.mark.long
def test_a_process_that_maps_the_file_by_name_reads_and_writes_in_place(tmp_path: Path) -> None:
    plane = SharedPlane("podrace-owner-", tmp_path)
    region = plane.create("slot", [PROBE_SPEC, REWARD])
    with subprocess.Popen(
        [sys.executable, "-c", PEER_PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        questions, answers = peer.stdin, peer.stdout
        assert questions is not None
        assert answers is not None

        def ask(refs: list[TensorRef]) -> str:
            questions.write(" ".join(ref.SerializeToString().hex() for ref in refs) + "\n")
            questions.flush()
            return answers.readline().strip()

        first = region.refs()
        sent = write_probe(region, seed=3)
        assert float(ask(first)) == sent
        assert region["reward"].sum() == 3000.0
        region.renew()
        assert "generation 2" in ask(first)
        assert float(ask(region.refs())) == sent
        region.close()
        assert "its owner closed it" in ask(first)
        questions.close()
        assert peer.wait(timeout=30) == 0


def test_the_default_folder_is_in_memory_and_left_unchanged() -> None:
    prefix = f"podrace-test_{uuid.uuid4().hex}-"
    plane = SharedPlane(prefix)
    region = plane.create("slot", [REWARD])
    file = FOLDER / f"{prefix}slot"
    mode = file.stat().st_mode
    region.close()
    assert mode & 0o777 == 0o600
    assert not file.exists()


def test_no_mapping_descriptor_or_file_remains_after_the_last_view(tmp_path: Path) -> None:
    for _ in range(20):
        owner, peer = SharedPlane("podrace-owner-", tmp_path), SharedPlane("podrace-peer-", tmp_path)
        region = owner.create("slot", [REWARD])
        tensors = peer.open(region.refs())
        assert mappings_of(tmp_path) == open_files_of(tmp_path) == 2
        del tensors
        peer.forget(region.plane_uri)
        assert mappings_of(tmp_path) == 1
        region.close()
        assert mappings_of(tmp_path) == 0
    assert open_files_of(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_view_keeps_its_memory_mapped(tmp_path: Path) -> None:
    owner = SharedPlane("podrace-owner-", tmp_path)
    reward = owner.create("slot", [REWARD])["reward"]
    tail = reward[990:]
    owner.close()
    del reward
    assert mappings_of(tmp_path) == 1
    assert tail.fill_(1.0).sum() == 10.0
    del tail
    assert mappings_of(tmp_path) == 0


def test_opening_again_maps_nothing_new(tmp_path: Path) -> None:
    owner, peer = SharedPlane("podrace-owner-", tmp_path), SharedPlane("podrace-peer-", tmp_path)
    region = owner.create("slot", [REWARD])
    addresses = {peer.open(region.refs())["reward"].data_ptr() for _ in range(10)}
    assert len(addresses) == 1
    assert mappings_of(tmp_path) == 2


def test_untouched_memory_is_not_allocated(tmp_path: Path) -> None:
    plane = SharedPlane("podrace-owner-", tmp_path)
    region = plane.create("slot", [bytes_spec("bytes", 2**28)])
    file = tmp_path / "podrace-owner-slot"
    assert file.stat().st_size == 64 + 2**28
    assert file.stat().st_blocks * 512 <= 2**16
    region["bytes"][2**27] = 1
    assert 0 < file.stat().st_blocks * 512 <= 2**17


def test_a_region_that_does_not_fit_is_refused_with_the_figures(tmp_path: Path) -> None:
    plane = SharedPlane("podrace-owner-", tmp_path)
    with pytest.raises(ResourceExhausted, match=rf"{tmp_path} has \d+ bytes free, .*'podrace-owner-huge' needs \d+"):
        plane.create("huge", bytes_specs(2**46))
    assert list(tmp_path.iterdir()) == []


def test_memory_that_is_not_allocated_yet_counts_as_used(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    most = bytes_specs(int(0.6 * status.f_bavail * status.f_frsize))
    plane = SharedPlane("podrace-owner-", tmp_path)
    region = plane.create("one", most)
    with pytest.raises(ResourceExhausted, match="podrace-owner-other"):
        plane.create("other", most)
    region.close()
    plane.create("other", most).close()


def test_memory_that_another_pod_has_not_allocated_yet_counts_as_used(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    most = bytes_specs(int(0.6 * status.f_bavail * status.f_frsize))
    region = SharedPlane("podrace-other-", tmp_path).create("slot", most)
    with pytest.raises(ResourceExhausted, match="podrace-owner-slot"):
        SharedPlane("podrace-owner-", tmp_path).create("slot", most)
    region.close()


def test_a_file_that_another_pod_created_at_the_same_moment_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.statvfs(tmp_path)
    most = int(0.6 * status.f_bavail * status.f_frsize)
    truncate = os.ftruncate

    def truncate_both(descriptor: int, size: int) -> None:
        (tmp_path / "podrace-quicker-slot").touch()
        os.truncate(tmp_path / "podrace-quicker-slot", most)
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", truncate_both)
    with pytest.raises(ResourceExhausted, match="podrace-owner-slot"):
        SharedPlane("podrace-owner-", tmp_path).create("slot", bytes_specs(most))
    assert [path.name for path in tmp_path.iterdir()] == ["podrace-quicker-slot"]


def test_only_the_regions_of_a_dead_owner_are_removed(tmp_path: Path) -> None:
    for prefix in ("podrace-a-", "podrace-a-b-", "podrace-ab-"):
        SharedPlane(prefix, tmp_path).create("1.1_slot", [REWARD])
    (tmp_path / "other").touch()
    assert shared.remove_regions("podrace-a-", tmp_path) == ["podrace-a-1.1_slot"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "podrace-a-b-1.1_slot", "podrace-ab-1.1_slot"]
    SharedPlane("podrace-a-", tmp_path).create("1.1_slot", [REWARD])


def test_a_peer_maps_the_region_of_a_restarted_owner(tmp_path: Path) -> None:
    peer = SharedPlane("podrace-peer-", tmp_path)
    dead = SharedPlane("podrace-owner-", tmp_path)
    peer.open(dead.create("slot", [REWARD]).refs())
    (tmp_path / "podrace-owner-slot").unlink()
    region = SharedPlane("podrace-owner-", tmp_path).create("slot", [REWARD])
    peer.open(region.refs())["reward"].fill_(4.0)
    assert region["reward"].sum() == 4000.0


@pytest.mark.parametrize("prefix", ["", "podrace", "podrace/a-", "../a-", ".a-", "-"])
def test_a_malformed_prefix_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(InvalidArgument, match="prefix"):
        SharedPlane(prefix, tmp_path)


@pytest.mark.parametrize("plane_uri", ["shared:../secret", "shared:a/b", "shared:/etc/passwd", "shared:", "memory:a"])
def test_a_uri_that_escapes_the_folder_is_refused(tmp_path: Path, plane_uri: str) -> None:
    ref = TensorRef(plane_uri=plane_uri, offset_bytes=64, spec=REWARD, generation=1)
    with pytest.raises(InvalidArgument, match="plane URI"):
        SharedPlane("podrace-peer-", tmp_path).open([ref])


@pytest.mark.parametrize("content", [b"", b"short", bytes(4096)])
def test_a_file_that_is_not_a_region_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    (tmp_path / "other").chmod(0o600)
    ref = TensorRef(plane_uri="shared:other", offset_bytes=64, spec=REWARD, generation=0)
    with pytest.raises(FailedPrecondition, match="is it a file of podrace"):
        SharedPlane("podrace-peer-", tmp_path).open([ref])


def test_a_truncated_region_is_refused_before_it_is_accessed(tmp_path: Path) -> None:
    region = SharedPlane("podrace-owner-", tmp_path).create("slot", [REWARD])
    refs = region.refs()
    copied = (tmp_path / "podrace-owner-slot").read_bytes()
    (tmp_path / "podrace-owner-torn").write_bytes(copied[:2048])
    (tmp_path / "podrace-owner-torn").chmod(0o600)
    refs[0].plane_uri = "shared:podrace-owner-torn"
    with pytest.raises(FailedPrecondition, match="is it a file of podrace"):
        SharedPlane("podrace-peer-", tmp_path).open(refs)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    region = SharedPlane("podrace-owner-", tmp_path).create("slot", [REWARD])
    (tmp_path / "link").symlink_to(tmp_path / "podrace-owner-slot")
    refs = region.refs()
    refs[0].plane_uri = "shared:link"
    with pytest.raises(FailedPrecondition, match="shared:link cannot be mapped"):
        SharedPlane("podrace-peer-", tmp_path).open(refs)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"'shared' needs the folder .*missing"):
        SharedPlane("podrace-owner-", tmp_path / "missing").create("slot", [REWARD])
