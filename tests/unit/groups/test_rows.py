"""What a committed offset looks like in the log: the bytes are fixed for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.groups.rows import (
    GroupPosition,
    OffsetKey,
    decode_generation,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    group_mistake,
)

groups = st.text(alphabet="abcXYZ019_.-", min_size=1, max_size=limits.GROUP_NAME_CHARS_MAX)
places = st.builds(OffsetKey, groups, st.integers(1, limits.OFFSET_MAX), st.integers(0, 2**31 - 1))
positions = st.builds(
    GroupPosition,
    st.integers(0, limits.OFFSET_MAX),
    st.none() | st.integers(0, 2**32 - 1),
    st.text(max_size=limits.OFFSET_METADATA_CHARS_MAX),
)


def test_the_bytes_are_these() -> None:
    assert encode_key(OffsetKey("billing.eu", 17, 3)) == b"v1/offset/billing.eu/17/3"
    assert encode_value(GroupPosition(42)) == b'{"offset":42}'
    assert (
        encode_value(GroupPosition(42, 3, 'a\u00e9"')) == '{"offset":42,"leader_epoch":3,"metadata":"aé\\""}'.encode()
    )


@given(place=places, position=positions)
def test_what_is_written_is_read_again(place: OffsetKey, position: GroupPosition) -> None:
    assert decode_key(encode_key(place)) == place
    assert decode_value(encode_value(position)) == position


@given(data=st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_other_bytes_say_nothing_or_are_the_one_form(data: bytes) -> None:
    place = decode_key(data)
    assert place is None or encode_key(place) == data
    decode_value(data)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"v2/offset/g/1/0",
        b"v1/group/g",
        b"v1/offset//1/0",
        b"v1/offset/g/0/0",
        b"v1/offset/g/01/0",
        b"v1/offset/g/1/00",
        b"v1/offset/g/1/0\n",
        b"v1/offset/g/h/1/0",
        "v1/offset/g/\u0661/0".encode(),
    ],
)
def test_keys_of_another_kind_are_none_of_ours(key: bytes | None) -> None:
    assert decode_key(key) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b'{"offset":-1}',
        b'{"offset":9223372036854775808}',
        b'{"offset":1.5}',
        b'{"offset":"1"}',
        b"\xff",
        b"[1]",
    ],
)
def test_values_that_are_none_say_nothing(value: bytes) -> None:
    assert decode_value(value) is None


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert decode_value(b'{"offset":7,"expires_us":5}') == GroupPosition(7)


def test_names_of_groups() -> None:
    assert group_mistake("billing.eu-1_x") is None
    assert group_mistake("g" * limits.GROUP_NAME_CHARS_MAX) is None
    for name in ("", "a/b", "a b", "a\n", "é", "g" * (limits.GROUP_NAME_CHARS_MAX + 1)):
        assert group_mistake(name) is not None


@pytest.mark.parametrize("deep", [b"[" * 5_000, b'{"offset":1,"number":1,"later":' + b"[" * 5_000])
def test_what_is_nested_too_deeply_says_nothing(deep: bytes) -> None:
    assert decode_value(deep) is None
    assert decode_generation(deep) is None
