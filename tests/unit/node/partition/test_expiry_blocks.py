"""Blocks of rows that will expire, and which of their rows do so next."""

from __future__ import annotations

from array import array

from penstock.node.partition.expiry_blocks import ExpiryBlocks, NextRows, NextRowsBudget


def test_rows_that_come_to_a_block_may_expire_before_those_that_are_noted() -> None:
    blocks = ExpiryBlocks(0, NextRowsBudget())
    blocks.add(0, 2, 10, 100)
    blocks.looked(0, NextRows(array("q", [20, 60]), array("q", [0, 1]), None))
    blocks.add(2, 3, 30, 100)
    (block,) = blocks.due(20, 0)
    assert block.next_rows is not None
    assert block.next_rows.over(20) == [0]
    blocks.looked(0, block.next_rows.after(20))
    assert blocks.next_us == 30, "the row that came is forgotten until 60"
