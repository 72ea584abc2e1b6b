"""Partitions and positions in them, as archives, tables and Spark's checkpoints record them."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """A partition: its stream's name and its number."""

    stream: str
    partition: int


class Position(NamedTuple):
    """A position in a partition: the next offset, and the leader epoch under which it was read; epoch 0: unknown."""

    offset: int
    leader_epoch: int = 0
