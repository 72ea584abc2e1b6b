"""Which conditions of a filter narrow what is fetched: never more than the filter passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
import pytest

from penstock.ops.sql import _Bounds, _conditions, _narrowed

OFFSET, SUBJECT, TIME, PARTITION, OTHER = map(pc.field, ("offset", "subject", "timestamp", "partition", "x"))
AT = datetime(2026, 11, 28, 10, 0, 0, 5, UTC)
US = timedelta(microseconds=1)
NOTHING = _Bounds()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (OFFSET == 7, NOTHING._replace(offset=7, offset_end=8)),
        ((OFFSET >= 5) & (OFFSET < 10) & (OTHER == "b"), NOTHING._replace(offset=5, offset_end=10)),
        ((OFFSET > 5) & ((OFFSET <= 10) & (OFFSET > 3)), NOTHING._replace(offset=6, offset_end=11)),
        ((OFFSET > 5) | (OFFSET < 3), NOTHING),
        (((OFFSET > 5) | (OTHER == 1)) & (PARTITION == 2), NOTHING._replace(partition=2)),
        (~(OFFSET > 5), NOTHING),
        (OFFSET.isin([3, 4]), NOTHING),
        (PARTITION > 1, NOTHING),
        (OFFSET == -1, NOTHING),
        ((TIME >= AT) & (TIME < AT + US), NOTHING._replace(time=AT, time_end=AT + US)),
        ((TIME > AT) & (TIME <= AT), NOTHING._replace(time=AT, time_end=AT + US)),
        (SUBJECT == "orders.eu", NOTHING._replace(subject="orders.eu")),
        (SUBJECT != "orders.eu", NOTHING),
        (SUBJECT == "no subject", NOTHING),
        (SUBJECT == "orders.*", NOTHING),
        ((SUBJECT == 'x") and (offset > 5') & (OFFSET < 3), NOTHING._replace(offset_end=3)),
        ((OTHER == "a) and (offset == 1) and (b") & (OFFSET < 3), NOTHING._replace(offset_end=3)),
        ((OTHER == "a\\") & (SUBJECT == "b"), NOTHING._replace(subject="b")),
    ],
)
def test_only_what_holds_for_all_rows_narrows(where, expected) -> None:
    assert _narrowed(_conditions(str(where))) == expected
