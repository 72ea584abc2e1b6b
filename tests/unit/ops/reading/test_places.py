"""Ranges of a reading that do not fit a group."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.read.filters import Filter
from penstock.ops.errors import ArgumentError
from penstock.ops.progress import Progress
from penstock.ops.reading.places import LastMessages, Reading, ReadOptions


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"start": LastMessages(3)}, "with --group give an offset"),
        ({"end": 42}, "has no end"),
        ({"where": Filter(subject="orders.eu")}, "has no filter"),
    ],
)
def test_a_group_reads_everything_from_its_offsets_on(options: dict[str, Any], why: str) -> None:
    wanted = ReadOptions("earliest", None, follow=False, group="g", partition=0)._replace(**options)
    with pytest.raises(ArgumentError, match=why):
        Reading(None, None, wanted, for_ever=False, timeout_s=1, progress=Progress())  # type: ignore[arg-type]
