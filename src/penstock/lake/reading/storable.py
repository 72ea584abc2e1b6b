"""Column types that Spark, Parquet, Delta and Iceberg hold, and arrays as such.

| Arrow type                                      | stored as                                                          |
|-------------------------------------------------|--------------------------------------------------------------------|
| `uint8`, `uint16`, `uint32`; `uint64`           | `int16`, `int32`, `int64`; `decimal128(20, 0)`                     |
| `float16`                                       | `float32`                                                          |
| `timestamp` of any unit and zone                | `timestamp[us]`, in UTC if it has a zone; nanoseconds are cut off  |
| `time32`, `time64`                              | `int64`: microseconds since midnight                               |
| `duration`                                      | `int64`: microseconds                                              |
| `decimal` of up to 38 digits; of more           | `decimal128`; `string`                                             |
| `dictionary`                                    | its values                                                         |
| `null`                                          | `string`, always null                                              |
| `large_…`, views, binary and lists of fixed size| `string`, `binary`, `list`                                         |
| `struct` without fields                         | `bool`: true where it is present                                   |
| `list`, `map`, `struct`                         | the same, of storable types                                        |
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

DECIMAL_DIGITS_MAX = 38
_UINT64 = pa.decimal128(20, 0)
_SIMPLE = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): _UINT64,
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def storable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which values are stored."""
    types = pa.types
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if types.is_dictionary(kind):
        return storable_type(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_time(kind) or types.is_duration(kind):
        return pa.int64()
    if types.is_decimal(kind):
        is_wide = kind.precision > DECIMAL_DIGITS_MAX
        return pa.string() if is_wide else pa.decimal128(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, storable_type(one.type)) for one in kind]) if len(kind) else pa.bool_()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", storable_type(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(storable_type(kind.key_type), storable_type(kind.item_type))
    return kind


def storable(array: pa.Array) -> pa.Array:
    """Return an array with its values as they are stored."""
    kind = array.type
    target = storable_type(kind)
    if target == kind:
        return array
    if pa.types.is_struct(kind):
        return _struct(array, target)
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return storable(array.cast(pa.list_(kind.value_field)))
    if pa.types.is_list(kind):
        return _like(array, target, [storable(array.values)])
    if pa.types.is_map(kind):
        parts = [storable(array.keys), storable(array.items)]
        entries = pa.StructArray.from_arrays(parts, fields=[target.key_field, target.item_field])
        return _like(array, target, [entries])
    if pa.types.is_dictionary(kind):
        return storable(array.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        return array.cast(target, safe=False)  # cuts nanoseconds off
    if pa.types.is_time(kind):
        return array.cast(pa.time64("us"), safe=False).cast(pa.int64())
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("us"), safe=False).cast(pa.int64())
    return array.cast(target)


def _struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not len(array.type):
        return pc.if_else(array.is_valid(), pa.scalar(True), pa.scalar(None, pa.bool_()))
    parts = [storable(array.field(place)) for place in range(len(target))]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)


def _like(array: pa.Array, target: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return a list or map with the offsets of another."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, children=children)
