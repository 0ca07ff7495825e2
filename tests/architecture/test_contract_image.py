"""The contract image: what `buf breaking` compares the protos with has to know every method, and is not broken."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

REPOSITORY = Path(__file__).parents[2]
IMAGE = "protos/contracts.binpb"
BIN = Path(sys.executable).parent


def methods_of(descriptors: FileDescriptorSet) -> set[str]:
    return {
        f"{file.package}.{service.name}/{method.name}"
        for file in descriptors.file
        for service in file.service
        for method in service.method
    }


def members_of(descriptors: FileDescriptorSet) -> set[str]:
    """Returns the fields and enum values of all messages and enums, each with its number."""
    found = set()
    own = [file for file in descriptors.file if file.package.startswith("podrace.")]
    pending = [(file.package, message) for file in own for message in file.message_type]
    enums = [(file.package, enum) for file in own for enum in file.enum_type]
    while pending:
        scope, message = pending.pop()
        name = f"{scope}.{message.name}"
        found |= {f"{name}.{field.name} = {field.number}" for field in message.field}
        pending += [(name, nested) for nested in message.nested_type]
        enums += [(name, enum) for enum in message.enum_type]
    return found | {
        f"{scope}.{enum.name}.{value.name} = {value.number}" for scope, enum in enums for value in enum.value
    }


@pytest.mark.parametrize("listed", [methods_of, members_of])
def test_the_contract_image_has_all_methods_fields_and_enum_values_of_the_protos(tmp_path, listed):
    compiled = tmp_path / "protos.binpb"
    protos = [str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "protos").rglob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "protos", f"--descriptor_set_out={compiled}", *protos]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    expected = listed(FileDescriptorSet.FromString(compiled.read_bytes()))
    known = listed(FileDescriptorSet.FromString((REPOSITORY / IMAGE).read_bytes()))
    assert known == expected, "`buf breaking` guards only what is in the image: run `make contract-image`"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the protos, of which the image may be renewed."""
    shutil.copy(REPOSITORY / "buf.yaml", tmp_path)
    shutil.copytree(REPOSITORY / "protos", tmp_path / "protos")
    return tmp_path


def renew(copy: Path, replaced: str, replacement: str) -> subprocess.CompletedProcess[str]:
    proto = copy / "protos/podrace/checkpoint/v1/checkpoint.proto"
    text = proto.read_text()
    assert replaced in text
    proto.write_text(text.replace(replaced, replacement))
    environment = {**os.environ, "BIN": str(BIN)}
    return subprocess.run(
        [copy / "protos/renew_image.sh"], capture_output=True, text=True, env=environment, check=False
    )


def test_the_contract_image_is_not_renewed_from_protos_that_break_it(copy):
    before = (copy / IMAGE).read_bytes()
    done = renew(copy, "  uint64 size_bytes = 3;\n", "")
    assert done.returncode != 0
    assert 'field "3" with name "size_bytes"' in done.stdout
    assert "it stays as it is" in done.stderr
    assert (copy / IMAGE).read_bytes() == before


def test_the_contract_image_is_renewed_with_a_new_field(copy):
    done = renew(copy, "  uint64 size_bytes = 3;\n", "  uint64 size_bytes = 3;\n  // New.\n  string added = 4;\n")
    assert done.returncode == 0, done.stderr
    files = FileDescriptorSet.FromString((copy / IMAGE).read_bytes()).file
    parts = [message for file in files for message in file.message_type if message.name == "Part"]
    assert [field.name for field in parts[0].field] == ["name", "digest", "size_bytes", "added"]
