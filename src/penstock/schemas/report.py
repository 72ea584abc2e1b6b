"""Reports of decoded rows: how many, by which versions of schemas, and which were refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from penstock.base.units import counted
from penstock.batch.schema import PARTITION_KEY
from penstock.schemas.decoding import Reason

Place = Callable[[int], str]
"""Function from a row's number to its position in the log, as text."""


class Counted(NamedTuple):
    """A number of values, and the position of the first one: "offset 17".

    `why`: what is wrong with the first one, with the path of its field, as far as that is known.
    """

    values: int
    first: str
    why: str = ""


@dataclass(slots=True)
class DecodeReport:
    """Counts of decoded rows. `rows`: all, of which null values and the `refused` ones are not `decoded`.

    `versions`: decoded rows by pattern of subjects and number of the schema's version.
    """

    rows: int = 0
    decoded: int = 0
    refused: dict[Reason, Counted] = field(default_factory=dict)
    versions: dict[tuple[str, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.refused)

    @property
    def refused_rows(self) -> int:
        """The number of refused rows."""
        return sum(each.values for each in self.refused.values())

    def add(self, later: DecodeReport) -> None:
        """Add the report of rows that follow."""
        self.rows += later.rows
        self.decoded += later.decoded
        for reason, more in later.refused.items():
            earlier = self.refused.get(reason)
            self.refused[reason] = more if earlier is None else earlier._replace(values=earlier.values + more.values)
        for version, count in later.versions.items():
            self.versions[version] = self.versions.get(version, 0) + count

    def sentences(self) -> list[str]:
        """Return what was refused as sentences; empty if nothing was."""
        of = counted(self.rows, "value")
        return [
            f"{each.values:,} of {of} not decoded: {reason.text} (first: {'; '.join(filter(None, each[1:]))})"
            for reason, each in sorted(self.refused.items())
        ]


def places(batch: pa.RecordBatch, rows_before: int) -> Place:
    """Return where in the log a row of the batch is; without its column `offset`, which row it is of all."""
    names = batch.schema.names
    if "offset" not in names:
        return lambda row: f"row {rows_before + row}"
    offsets, said = batch.column("offset"), (batch.schema.metadata or {}).get(PARTITION_KEY)
    if "partition" in names:
        return lambda row: f"partition {batch.column('partition')[row]}, offset {offsets[row]}"
    return lambda row: f"offset {offsets[row]}" if said is None else f"partition {int(said, 16)}, offset {offsets[row]}"
