"""Translates calls between a version and the one before or after it, as they meet during a rolling update.

The previous version is what the contract image describes (`protos/contracts.binpb`): its messages have no other fields.
The next version is that of today with fields and enum values that no version knows yet.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message
from proxied_mesh import ForwardingProxy

IMAGE = Path(__file__).parents[2] / "protos/contracts.binpb"
UNKNOWN = 99
"""Value of an enum that no version knows."""
UNKNOWN_FIELDS = bytes.fromhex("b8ea01 07 c2ea01 036e6577 cdea01 00000000")
"""Fields 3751 to 3753 that no message has: a number, a text, and four bytes."""
NEW_IN_REQUESTS = ("podrace.orchestrator.v1.RolePhase", "podrace.orchestrator.v1.PodActivity")
"""Enums whose values a newer pod reports."""
NEW_IN_REPLIES = ("podrace.leaderboard.v1.Origin",)
"""Enums whose values newer services return."""


class Contracts:
    """Messages of the methods as one version knows them."""

    def __init__(self, files: FileDescriptorSet | None = None) -> None:
        """Reads the contracts.

        Args:
            files: Their descriptors; None: those of today.
        """
        if files is None:
            self._pool = descriptor_pool.Default()
            return
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)

    def types_of(self, method: str) -> tuple[type[Message], type[Message]]:
        """Returns the types of request and reply of `/package.Service/Method`; raises KeyError if it is unknown."""
        found = self._pool.FindMethodByName(method.lstrip("/").replace("/", "."))
        get = message_factory.GetMessageClass
        return get(found.input_type), get(found.output_type)


def limited(message_type: type[Message], data: bytes) -> bytes:
    """Returns a message without the fields that a version does not know."""
    message = message_type.FromString(data)
    message.DiscardUnknownFields()
    return message.SerializeToString()


def extended(message_type: type[Message], data: bytes, enums: tuple[str, ...] = ()) -> bytes:
    """Returns a message in which all messages have unknown fields, and set fields of some enums have a new value."""
    message = message_type.FromString(data)
    for part in parts_of(message):
        for field, value in part.ListFields():
            if field.enum_type and field.enum_type.full_name in enums and not field.is_repeated and value:
                setattr(part, field.name, UNKNOWN)
        part.MergeFromString(UNKNOWN_FIELDS)
    return message.SerializeToString()


def parts_of(message: Any) -> Iterator[Any]:
    """Yields a message and all messages of podrace in it."""
    if not message.DESCRIPTOR.full_name.startswith("podrace."):
        return
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in value:
                    yield from parts_of(value[key])
        elif field.is_repeated:
            for one in value:
                yield from parts_of(one)
        else:
            yield from parts_of(value)


class PreviousCallers(ForwardingProxy):
    """Callers of the previous version call services of the next one.

    Attributes:
        counts: Number of calls by method.
        extended: Number of replies that had more than a caller knows.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._today, self._image = Contracts(), Contracts(FileDescriptorSet.FromString(IMAGE.read_bytes()))
        self.counts: Counter[str] = Counter()
        self.extended = 0

    async def replies(self, method: str, requests: list[bytes], context: Any) -> AsyncIterator[bytes]:
        """See ForwardingProxy."""
        self.counts[method.rpartition("/")[2]] += 1
        try:
            requested, replied = self._image.types_of(method)
        except KeyError:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is unknown to the previous version")
        async for reply in self.forward(method, [self.request(requested, one) for one in requests], context):
            self.extended += 1
            yield self.reply(replied, reply)

    def request(self, message_type: type[Message], data: bytes) -> bytes:
        """What arrives of a request."""
        return limited(message_type, data)

    def reply(self, message_type: type[Message], data: bytes) -> bytes:
        """What arrives of a reply."""
        return extended(message_type, data, NEW_IN_REPLIES)


class PreviousServices(PreviousCallers):
    """Callers of the next version call services of the previous one."""

    def request(self, message_type: type[Message], data: bytes) -> bytes:
        """See PreviousCallers."""
        return extended(message_type, data, NEW_IN_REQUESTS)

    def reply(self, message_type: type[Message], data: bytes) -> bytes:
        """See PreviousCallers."""
        return limited(message_type, data)
