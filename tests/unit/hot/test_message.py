"""What a Checker is told of the layout is looked at once; what it finds is in tests/property/test_message_parity.py."""

from __future__ import annotations

import pytest

from penstock.batch.codec import LAYOUT
from penstock.hot.message import MessageChecker


@pytest.mark.parametrize(
    "wrong",
    [
        {"template": LAYOUT.template[:719]},
        {"template": b""},
        {"body_length_position": 713},
        {"header_position": 529},
        {"crc_position": 713},
        {"rows_position": 713},
        {"nodes_position": 625},
        {"buffers_position": 465},
        {"templates": LAYOUT.templates[:3]},
        {"templates": (*LAYOUT.templates[:3], b"")},
    ],
)
def test_a_layout_beyond_its_own_template_is_refused(wrong: dict[str, object]) -> None:
    MessageChecker(LAYOUT)
    with pytest.raises(IndexError):
        MessageChecker(LAYOUT._replace(**wrong))
