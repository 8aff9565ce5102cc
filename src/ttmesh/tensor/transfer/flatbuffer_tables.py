"""FlatBuffers by schema: plain data to bytes and back, with every offset of what is read checked."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ttmesh.base.errors import MeshError

# Scalars by their name in a schema: how struct writes them, and what flatbuffers' builder calls them.
SCALARS = {
    "bool": ("?", "Bool"),
    "ubyte": ("B", "Uint8"),
    "ushort": ("H", "Uint16"),
    "int": ("i", "Int32"),
    "uint": ("I", "Uint32"),
    "ulong": ("Q", "Uint64"),
}
Fields = Mapping[str, str]


class FlatbufferError(MeshError):
    """Bytes that are not a flatbuffer of the schema."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, expected="a flatbuffer of this schema", fix="Write the file again.")


class Schema:
    """Tables, structs and unions by name. A field's type is a scalar, a table, `string`, a union, or `[type]`.

    As plain data a table is a dict, a vector a list, a union a pair (name of the table, its dict), what is absent None.
    """

    def __init__(
        self,
        tables: Mapping[str, Fields],
        *,
        structs: Mapping[str, Fields] | None = None,
        unions: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.tables, self.structs, self.unions = tables, structs or {}, unions or {}

    def encode(self, name: str, values: Mapping[str, Any], *, alignment: int = 8) -> bytes:
        """A table as a whole flatbuffer whose size is a multiple of the alignment."""
        builder = importlib.import_module("flatbuffers").Builder(1024)  # only who writes files needs the package
        root = _Writer(self, builder).write_table(name, values)
        builder.Prep(alignment, 0)
        builder.Finish(root)
        return bytes(builder.Output())

    def decode(self, name: str, data: bytes) -> dict[str, Any]:
        """The table that a flatbuffer holds; raises FlatbufferError for anything wrong with it."""
        reader = _Reader(self, data)
        return reader.read_table(name, reader.follow(0))


class _Writer:
    def __init__(self, schema: Schema, builder: Any) -> None:
        self.schema, self.builder = schema, builder

    def write_table(self, name: str, values: Mapping[str, Any]) -> int:
        """Children first, as the builder wants it; the place of the table."""
        schema, builder = self.schema, self.builder
        slots: list[tuple[str, Any]] = []
        for field, kind in schema.tables[name].items():
            value = values.get(field)
            if kind in schema.unions:
                tag = 0 if value is None else schema.unions[kind].index(value[0]) + 1
                slots += [("ubyte", tag), ("offset", None if value is None else self._write(*value))]
            elif kind in SCALARS:
                slots.append((kind, value or 0))
            else:
                slots.append(("offset", None if value is None else self._write(kind, value)))
        builder.StartObject(len(slots))
        for slot, (kind, value) in enumerate(slots):
            if kind != "offset":
                getattr(builder, f"Prepend{SCALARS[kind][1]}Slot")(slot, value, 0)
            elif value is not None:
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        return int(builder.EndObject())

    def _write(self, kind: str, value: Any) -> int:
        builder = self.builder
        if kind in self.schema.structs:
            formats = [SCALARS[scalar] for scalar in self.schema.structs[kind].values()]
            sizes = [struct.calcsize(form) for form, _ in formats]
            builder.Prep(max(sizes), sum(sizes))
            for (_, scalar), part in zip(reversed(formats), reversed(list(value.values())), strict=True):
                getattr(builder, f"Prepend{scalar}")(part)
            return int(builder.Offset())
        if kind == "string":
            return int(builder.CreateString(value))
        if not kind.startswith("["):
            return self.write_table(kind, value)
        inner = kind[1:-1]
        if inner in SCALARS:
            return int(builder.CreateNumpyVector(np.array(value, dtype=SCALARS[inner][0])))
        places = [self._write(inner, item) for item in value]
        builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            builder.PrependUOffsetTRelative(place)
        return int(builder.EndVector())


class _Reader:
    """Reads at checked places; `left` bounds the work that offsets which all point to one place could cause."""

    def __init__(self, schema: Schema, data: bytes) -> None:
        self.schema, self.data, self.left = schema, data, len(data) + 64

    def scalar(self, form: str, at: int) -> Any:
        size = struct.calcsize(form)
        if not 0 <= at <= len(self.data) - size:
            raise FlatbufferError(f"an offset leads to {at} of {len(self.data)} bytes")
        self.left -= size
        if self.left < -len(self.data):  # every byte once, and the tables' own tables
            raise FlatbufferError("its offsets lead to the same bytes over and over")
        return struct.unpack_from(f"<{form}", self.data, at)[0]

    def follow(self, at: int) -> int:
        return at + int(self.scalar("I", at))

    def read_table(self, name: str, at: int) -> dict[str, Any]:
        schema = self.schema
        vtable = at - self.scalar("i", at)
        size = self.scalar("H", vtable)
        slot = 0
        found: dict[str, Any] = {}

        def find_place() -> int | None:
            nonlocal slot
            entry, slot = 4 + 2 * slot, slot + 1
            offset = self.scalar("H", vtable + entry) if entry < size else 0
            return at + offset if offset else None

        for field, kind in schema.tables[name].items():
            place = find_place()
            if kind in schema.unions:
                tag = 0 if place is None else self.scalar("B", place)
                place = find_place()
                found[field] = None if not tag or place is None else self._read_union(kind, tag, place)
            elif kind in SCALARS:
                found[field] = 0 if place is None else self.scalar(SCALARS[kind][0], place)
            else:
                found[field] = None if place is None else self._read(kind, self.follow(place))
        return found

    def _read_union(self, union: str, tag: int, place: int) -> tuple[str, Any]:
        members = self.schema.unions[union]
        if tag > len(members):
            raise FlatbufferError(f"{union} {tag} is not one of {list(members)}")
        return members[tag - 1], self._read(members[tag - 1], self.follow(place))

    def _read(self, kind: str, at: int) -> Any:
        if kind in self.schema.structs:
            values = {}
            for field, scalar in self.schema.structs[kind].items():
                values[field] = self.scalar(SCALARS[scalar][0], at)
                at += struct.calcsize(SCALARS[scalar][0])
            return values
        if kind == "string":
            count = self.scalar("I", at)
            return self._take(at + 4, count).decode(errors="replace")
        if not kind.startswith("["):
            return self.read_table(kind, at)
        inner, count = kind[1:-1], self.scalar("I", at)
        if inner in SCALARS:
            form = SCALARS[inner][0]
            return list(struct.unpack(f"<{count}{form}", self._take(at + 4, count * struct.calcsize(form))))
        return [self._read(inner, self.follow(at + 4 + 4 * i)) for i in range(count)]

    def _take(self, at: int, size: int) -> bytes:
        if size:
            self.scalar("B", at + size - 1)
        self.left -= size
        return self.data[at : at + size]
