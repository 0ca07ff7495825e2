"""Makes messages for fuzzing: random ones within and beyond the bounds of the contract, mutated ones, damaged bytes.

Everything is drawn from one `random.Random`, so a case is repeated from its seed. Texts are often those that occur in
the service, ids and digests, because most code is reached only with them.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from podrace.field_bounds import bounds_of

HOSTILE = (
    "",
    " ",
    "\x00",
    "\x1b[2J\x1b]0;title\x07",
    "line\nbreak\r\n",
    "../../etc/passwd",
    "/proc/self/environ",
    "a" * 300,
    "é漢🏁" * 40,
    "\u202egnp.exe",
    "%s%n{0}",
    "NaN",
    "-1",
    "1e999",
    "'; DROP TABLE pods; --",
    "python:no_such_module:f",
    "grpc://127.0.0.1:1",
    "memory:gone",
    "shared:../x",
    "grpc:127.0.0.1:1/x",
)
INTEGERS = (0, 1, 2, 3, 7, 64, 100, 1000, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, 1.8e308, math.inf, -math.inf, math.nan, 2.0**63)
LARGEST = {
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
    FieldDescriptor.TYPE_INT32: 2**31 - 1,
    FieldDescriptor.TYPE_INT64: 2**63 - 1,
}
DEEPEST = 12


class MessageMaker:
    """Makes messages from one source of random numbers."""

    def __init__(self, random: Random, words: Sequence[str]) -> None:
        """Takes the texts that mean something to the service, such as its ids."""
        self._random, self._words = random, tuple(words)

    def message(self, kind: type[Message], seeds: Sequence[Message]) -> bytes:
        """Returns the bytes of a request: a random one, a changed seed, or damaged bytes of either."""
        random = self._random
        if seeds and random.random() < 0.7:
            made = kind()
            made.CopyFrom(random.choice(seeds))
            for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
                self.mutate(made)
        else:
            made = kind()
            self.fill(made, 0)
        if "request_id" in made.DESCRIPTOR.fields_by_name and random.random() < 0.6:
            made.request_id = f"r{random.getrandbits(60)}"
        data = made.SerializeToString()
        return self.damaged(data) if random.random() < 0.08 else data

    def fill(self, message: Message, depth: int) -> None:
        """Sets random fields."""
        share = self._random.choice((0.2, 0.6, 0.95)) if depth < DEEPEST else 0.0
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < share:
                self._set(message, field, depth)

    def mutate(self, message: Message) -> None:
        """Changes one field, of the message itself or of one within it."""
        present = [(field, value) for field, value in message.ListFields() if _is_plain_message(field)]
        if present and self._random.random() < 0.7:
            self.mutate(self._random.choice(present)[1])
            return
        fields = message.DESCRIPTOR.fields
        if not fields:
            return
        field = self._random.choice(fields)
        if self._random.random() < 0.25:
            message.ClearField(field.name)
        else:
            self._set(message, field, DEEPEST // 2)

    def damaged(self, data: bytes) -> bytes:
        """Cuts, repeats or changes bytes."""
        random, changed = self._random, bytearray(data or b"\x08")
        for _ in range(random.randint(1, 4)):
            place = random.randrange(len(changed)) if changed else 0
            match random.randrange(4):
                case 0:
                    changed[place : place + 1] = bytes([random.randrange(256)])
                case 1:
                    del changed[place:]
                case 2:
                    changed[place:place] = random.randbytes(random.randint(1, 9))
                case _:
                    changed += changed[place : place + 20]
        return bytes(changed)

    def text(self) -> str:
        """Returns a text: known, hostile, or random characters."""
        random = self._random
        chosen = random.random()
        if chosen < 0.6 and self._words:
            return random.choice(self._words)
        if chosen < 0.9:
            return random.choice(HOSTILE)
        return "".join(
            chr(random.choice((random.randrange(32, 127), random.randrange(0xD800))))
            for _ in range(random.randrange(20))
        )

    def integer(self, largest: int) -> int:
        """Returns a whole number, often at an edge."""
        if self._random.random() < 0.8:
            return min(self._random.choice(INTEGERS), largest)
        return self._random.randrange(largest + 1)

    def real(self) -> float:
        """Returns a number, often not finite or at an edge."""
        return self._random.choice(FLOATS) if self._random.random() < 0.6 else self._random.uniform(-1e3, 1e3)

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._set_map(getattr(message, field.name), field.message_type, depth)
        elif field.is_repeated:
            self._set_list(getattr(message, field.name), field, depth)
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            self.fill(child, depth + 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _set_list(self, values: Any, field: FieldDescriptor, depth: int) -> None:
        for _ in range(self._random.choice((1, 1, 2, 5))):
            if field.message_type is not None:
                self.fill(values.add(), depth + 1)
            else:
                values.append(self._scalar(field))

    def _set_map(self, values: Any, entry: Descriptor, depth: int) -> None:
        value = entry.fields_by_name["value"]
        for _ in range(self._random.choice((1, 1, 2, 3))):
            key = self.text()
            if value.message_type is not None:
                self.fill(values[key], depth + 1)
            else:
                values[key] = self._scalar(value)

    def _scalar(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.text()
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._random.randbytes(self._random.choice((0, 1, 8, 16, 100)))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._random.random() < 0.5
        if field.enum_type is not None:
            return self._random.choice((*field.enum_type.values_by_number, 99, -1))
        bounds = bounds_of(field)
        edges = [int(edge) for edge in (bounds.minimum, bounds.maximum) if math.isfinite(edge)]
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return float(self._random.choice(edges)) if self._random.random() < 0.1 else self.real()
        largest = LARGEST[field.type]
        if self._random.random() < 0.15:
            return max(0, min(largest, self._random.choice(edges) + self._random.choice((-1, 0, 1))))
        return self.integer(largest)


def _is_plain_message(field: FieldDescriptor) -> bool:
    return field.message_type is not None and not field.is_repeated
