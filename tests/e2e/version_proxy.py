"""Translates calls between versions, as they meet if pods and services are updated one after the other.

For calls of pods, one side is the last release: its messages have no other fields than those of its contracts, its
services no other methods, and its enums no other values. For the calls of other callers, one side is of today, because
an orchestrator and its leaderboard are of the same version. The other side is in both cases the next version: that of
today, with fields and enum values that no version knows yet. All run the code of today, so the translation does not
show how the code of the release behaves.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message
from proxied_mesh import ForwardingProxy
from released import HOMES, contracts, name

from podrace.access.rules import rule_of
from podrace.access.v1 import access_pb2
from podrace.checkpoint.v1 import store_pb2
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2

TODAY = (leaderboard_pb2.DESCRIPTOR, orchestrator_pb2.DESCRIPTOR, store_pb2.DESCRIPTOR)
"""Contracts of today, which have the access rules; importing them makes them known to `rule_of`."""
RELEASED = contracts(name(HOMES[-1]))
"""Contracts of the last release."""
UNKNOWN = 99
"""Value of an enum that no version knows."""
UNKNOWN_FIELDS = bytes.fromhex("b8ea01 07 c2ea01 036e6577 cdea01 00000000")
"""Fields 3751 to 3753 that no message has: a number, a text, and four bytes."""
TAKEN_FOR = {"podrace.orchestrator.v1.Directive": orchestrator_pb2.DIRECTIVE_CONTINUE}
"""What 0.1.0 takes unknown values of an enum for. Later pods take an unknown directive for DIRECTIVE_DRAIN."""
NEW_IN_REQUESTS = ("podrace.orchestrator.v1.RolePhase", "podrace.orchestrator.v1.PodActivity")
"""Enums whose values a newer pod reports."""
NEW_IN_REPLIES = ("podrace.leaderboard.v1.Origin",)
"""Enums whose values newer services return."""


class Contracts:
    """Messages of the methods as the side that is not of the next version knows them."""

    def __init__(self, released: FileDescriptorSet) -> None:
        """Reads the contracts of the release from their descriptors."""
        self._released = descriptor_pool.DescriptorPool()
        for file in released.file:
            self._released.Add(file)

    def types_of(self, method: str) -> tuple[type[Message], type[Message]]:
        """Returns the types of request and reply of `/package.Service/Method`; raises KeyError if it is unknown."""
        of_pods = access_pb2.ROLE_POD_LEADER in rule_of(method).roles
        pool = self._released if of_pods else descriptor_pool.Default()
        service, _, name_of_method = method.removeprefix("/").rpartition("/")
        # Unlike FindMethodByName, this loads the file of the service if nothing has used it before.
        found = pool.FindServiceByName(service).methods_by_name[name_of_method]
        get = message_factory.GetMessageClass
        return get(found.input_type), get(found.output_type)


def limited(message_type: type[Message], data: bytes) -> bytes:
    """Returns a message without fields that a version does not know, and with no enum value that it does not know."""
    message = message_type.FromString(data)
    message.DiscardUnknownFields()
    for part in parts_of(message):
        for field, value in part.ListFields():
            if field.enum_type and not field.is_repeated and value not in field.enum_type.values_by_number:
                setattr(part, field.name, TAKEN_FOR.get(field.enum_type.full_name, UNKNOWN))
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
    """Pods of the last release, and other callers of today, call services of the next version.

    Attributes:
        counts: Number of calls by method.
        unknown: Methods that were called and are unknown to the release.
        extended: Number of replies that had more than a caller knows.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._contracts = Contracts(RELEASED)
        self.counts: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.extended = 0

    async def replies(self, method: str, requests: list[bytes], context: Any) -> AsyncIterator[bytes]:
        """See ForwardingProxy."""
        self.counts[method.rpartition("/")[2]] += 1
        try:
            requested, replied = self._contracts.types_of(method)
        except KeyError:
            self.unknown.add(method.rpartition("/")[2])
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is unknown to the other version")
        async for reply in self.forward(method, [self.request(requested, one) for one in requests], context):
            self.extended += 1
            yield self.reply(replied, reply)

    def request(self, message_type: type[Message], data: bytes) -> bytes:
        """What arrives of a request."""
        return limited(message_type, data)

    def reply(self, message_type: type[Message], data: bytes) -> bytes:
        """What arrives of a reply."""
        return extended(message_type, limited(message_type, data), NEW_IN_REPLIES)


class PreviousServices(PreviousCallers):
    """Pods of the next version call services of the last release; other callers of the next version those of today."""

    def request(self, message_type: type[Message], data: bytes) -> bytes:
        """See PreviousCallers."""
        return extended(message_type, limited(message_type, data), NEW_IN_REQUESTS)

    def reply(self, message_type: type[Message], data: bytes) -> bytes:
        """See PreviousCallers."""
        return limited(message_type, data)
