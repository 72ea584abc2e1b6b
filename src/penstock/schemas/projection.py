"""Columns of one version of a schema as those of another.

Rules: fields of structs are found by name. One that the version does not have is null; one that the other lacks is left
out. A value whose type has changed is cast as Arrow casts safely; one that cannot be cast is null, and its row is
marked. What becomes of a row does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def projected(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return the array as another type, and which rows have a value that is lost; None: none has."""
    kind = array.type
    if kind == wanted:
        return array, None
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        return _struct(array, wanted)
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return list_of(array, wanted, *projected(array.values, wanted.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return _map(array, wanted)
    return cast(array, wanted)


def list_of(
    array: pa.ListArray, wanted: pa.DataType, values: pa.Array, lost: pa.BooleanArray | None
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return lists with other values, of which some may be lost."""
    made = pa.Array.from_buffers(
        wanted, len(array), array.buffers()[:2], array.null_count, array.offset, children=[values]
    )
    return made, _rows_of_lists(array, lost)


def map_of(
    array: pa.MapArray, wanted: pa.DataType, keys: pa.Array, items: pa.Array, lost: pa.BooleanArray | None
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return maps with other keys and items, of which items may be lost."""
    entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
    return list_of(array, wanted, entries, lost)


def _struct(array: pa.StructArray, wanted: pa.DataType) -> tuple[pa.Array, pa.BooleanArray | None]:
    parts, marks = [], []
    for field in wanted:
        place = array.type.get_field_index(field.name)
        if place < 0:
            parts.append(pa.nulls(len(array), field.type))
            continue
        part, lost = projected(array.field(place), field.type)
        parts.append(part)
        if lost is not None:
            marks.append(pc.and_(lost, array.is_valid()))
    mask = array.is_null() if array.null_count else None
    made = pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
    return made, either(marks)


def _map(array: pa.MapArray, wanted: pa.DataType) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return a map. A key that does not fit makes the whole map null, since keys are never null."""
    keys, lost_keys = projected(array.keys, wanted.key_type)
    items, lost = projected(array.items, wanted.item_type)
    if lost_keys is not None:
        rows = _rows_of_lists(array, lost_keys)
        # Copied, as keys that do not fit may also lie before or behind a slice.
        is_lost = pa.repeat(False, len(array)) if rows is None else rows
        made, others = _map(pc.if_else(is_lost, pa.scalar(None, array.type), array), wanted)
        return made, either([rows, others])
    return map_of(array, wanted, keys, items, lost)


def _rows_of_lists(array: pa.Array, lost: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Return the rows with a lost value in their list or map; `lost` is of all values below, from the first buffer."""
    if lost is None:
        return None
    numbers = pc.cumulative_sum(pc.fill_null(lost, False).cast(pa.int64()))
    before = pa.concat_arrays([pa.array([0], pa.int64()), numbers])
    offsets = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, array.buffers()[1]], 0, array.offset)
    counts = before.take(offsets)
    found = pc.not_equal(counts[1:], counts[:-1])
    found = pc.and_(found, array.is_valid())
    return found if pc.any(found).as_py() else None


def cast(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return values without parts as another type; those that it does not hold are lost."""
    if pa.types.is_dictionary(wanted):
        made, lost = projected(array, wanted.value_type)
        return made.dictionary_encode().cast(wanted), lost
    try:
        return array.cast(wanted), None
    except pa.ArrowNotImplementedError:
        made = pa.nulls(len(array), wanted)
    except pa.ArrowInvalid:
        made = pa.array([_cast_value(value, wanted) for value in array], wanted)
    return marked(made, array)


def marked(made: pa.Array, array: pa.Array) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Return what was made of an array, and which of its values it lacks."""
    lost = pc.and_(made.is_null(), array.is_valid())
    return made, lost if pc.any(lost).as_py() else None


def _cast_value(value: pa.Scalar, wanted: pa.DataType) -> pa.Scalar | None:
    try:
        return value.cast(wanted)
    except pa.ArrowInvalid:
        return None


def either(marks: Iterable[pa.BooleanArray | None]) -> pa.BooleanArray | None:
    """Return which rows are marked in any of the marks; None: there is no mark."""
    found = None
    for mark in marks:
        if mark is not None:
            found = mark if found is None else pc.or_(found, mark)
    return found
