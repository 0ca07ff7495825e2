"""Converts manifests and pointers to canonical JSON and back, so that equal messages have equal digests.

Canonical means: the field names of the .proto, sorted keys, no spaces, UTF-8. 64-bit integers are strings, as in the
JSON form of protobuf. Doubles are the shortest text that reads back to the same bits.
"""

import json

from google.protobuf import json_format
from google.protobuf.message import Message

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.errors import DataLoss, Unimplemented

FORMAT_VERSION = 1
LARGEST_MANIFEST_BYTES = 16 * 2**20
"""No manifest is larger. A larger object need not be read to find out that it is none."""


def canonical_json(message: Message) -> bytes:
    """Returns the canonical JSON of a message."""
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the bytes whose SHA-256 names a manifest."""
    return canonical_json(manifest)


def manifest_from_bytes(data: bytes) -> Manifest:
    """Reads a manifest; fields that a later version added are ignored.

    Raises:
        DataLoss: The bytes are not a manifest.
        Unimplemented: The manifest has a later format.
    """
    manifest = Manifest()
    _parse(data, manifest)
    if manifest.format_version != FORMAT_VERSION:
        raise Unimplemented(
            f"the manifest has format version {manifest.format_version}, this build reads {FORMAT_VERSION};"
            " update podrace"
        )
    return manifest


def pointer_from_bytes(data: bytes) -> Pointer:
    """Reads a pointer.

    Raises:
        DataLoss: The bytes are not a pointer.
    """
    pointer = Pointer()
    _parse(data, pointer)
    return pointer


def _parse(data: bytes, message: Message) -> None:
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):  # the library accepts an empty list as an empty message
            raise json_format.ParseError(f"a {type(fields).__name__}, not an object")
        json_format.ParseDict(fields, message, ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise DataLoss(f"{len(data)} bytes are not a {message.DESCRIPTOR.name} in JSON: {error}") from error
