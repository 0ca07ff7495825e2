"""Every field of a request that has a size or a number states its bounds in the contract."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from podrace.bounds.v1 import bounds_pb2
from podrace.field_bounds import bounds_of

REPOSITORY = Path(__file__).parents[2]
MODULES = [path.relative_to(REPOSITORY).with_suffix("") for path in REPOSITORY.glob("podrace/*/v[0-9]*/*_pb2.py")]
FILES = [importlib.import_module(".".join(module.parts)).DESCRIPTOR for module in sorted(MODULES)]
REQUESTS = [
    method.input_type for file in FILES for service in file.services_by_name.values() for method in service.methods
]
TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
WITHOUT_SIZE = (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM)
NUMBERS = ("minimum", "maximum", "finite", "any_number")


def unbounded(descriptor: Descriptor, seen: set[str] | None = None) -> Iterator[str]:
    """Names the fields of a message, and of the messages within it, that lack bounds."""
    seen = set() if seen is None else seen
    if descriptor.full_name in seen or descriptor.file.package == "google.protobuf":
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        bounds, element = bounds_of(field), field
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.is_repeated and not bounds.HasField("maximum_items"):
            yield f"{field.full_name}: maximum_items"
        if is_map:
            element = field.message_type.fields_by_name["value"]
        if missing := missing_bound(element, bounds):
            yield f"{field.full_name}: {missing}"
        if element.message_type is not None:
            yield from unbounded(element.message_type, seen)


def missing_bound(element: FieldDescriptor, bounds: bounds_pb2.Bounds) -> str:
    """Returns which bound a value lacks; empty if it has all."""
    stated = {field.name for field, _ in bounds.ListFields()}
    if element.message_type is not None:
        name = element.message_type.full_name
        if name in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
            return "" if stated & set(NUMBERS) else "maximum or any_number"
        return "maximum_bytes" if name.startswith("google.protobuf.") and "maximum_bytes" not in stated else ""
    if element.type in TEXTS:
        return "" if stated & {"maximum_bytes", "format"} else "maximum_bytes or format"
    return "" if element.type in WITHOUT_SIZE or stated & set(NUMBERS) else "minimum, maximum, finite or any_number"


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda request: request.name)
def test_every_field_of_a_request_has_bounds(request_type):
    assert not list(unbounded(request_type))


def test_a_field_without_bounds_is_found():
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="without_bounds.proto", package="without_bounds", syntax="proto3")
    message = file.message_type.add(name="Request")
    for number, (name, kind) in enumerate(
        [
            ("text", kinds.TYPE_STRING),
            ("data", kinds.TYPE_BYTES),
            ("number", kinds.TYPE_DOUBLE),
            ("flag", kinds.TYPE_BOOL),
        ]
    ):
        message.field.add(name=name, number=2 * number + 1, type=kind, label=kinds.LABEL_OPTIONAL)
        message.field.add(name=f"{name}s", number=2 * number + 2, type=kind, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = list(unbounded(pool.FindMessageTypeByName("without_bounds.Request")))
    assert {line.partition(":")[0].rpartition(".")[2] for line in found} == {
        *("text", "texts", "data", "datas", "number", "numbers", "flags"),
    }
