"""Whatever is no command is refused in one way: whoever reads the metadata log says then that it is too old."""

from __future__ import annotations

import msgspec
import pytest

from penstock.metadata.commands import decode_command

BAD = {
    "nothing": b"",
    "another type": b"\x90",
    "text that is none": b"\x81\xa4type\xa1\xff",
    "a name that is none": b"\x81\xa1\xff\x01",
    "nested too deeply": b"\x82\xa4type\xacalter_stream\xa7changes\x81\xa1x" + b"\x91" * 5_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_whatever_is_no_command_is_refused_in_one_way(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_command(data)
