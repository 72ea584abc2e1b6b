"""Append the lines of a file to a stream, each exactly once, however often this program is killed and started again.

    python examples/append_once.py orders.jsonl

Start it again within ten minutes: so long the broker remembers the producer. The stream must be there:
`penstock stream create shop 'shop.>'`. PENSTOCK_SERVER names the broker.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import penstock

LOADER = 4711  # the producer's id: the same at each start, and of no other program
BATCH_ROWS = 100  # the same at each start: a batch is stored whole, once


def load(client: penstock.Client, lines: list[str]) -> None:
    """Append all lines; those that an earlier run has stored are not stored again."""
    first = 0  # a row's sequence is its line number
    while first < len(lines):
        producer = client.producer("shop", producer_id=LOADER, sequence=first)
        try:
            for begin in range(first, len(lines), BATCH_ROWS):
                rows = [{"subject": "shop.file", "value": line} for line in lines[begin : begin + BATCH_ROWS]]
                for place in producer.append(rows):
                    print(f"lines {begin} to {begin + len(rows) - 1}: offsets from {place.base_offset}")
            return
        except penstock.RemoteError as error:
            if error.code != "already_appended":  # stored by an earlier run, so long ago that the offsets are unknown
                raise
            first = error.details["next_sequence"]
            print(f"lines up to {first - 1} are there already")


def main() -> None:
    """Append the file that the command line names."""
    parser = argparse.ArgumentParser(description="Append the lines of a file, each exactly once.")
    parser.add_argument("file", type=Path, help="a file with one JSON object per line")
    lines = parser.parse_args().file.read_text(encoding="utf-8").splitlines()
    with penstock.connect() as client:
        load(client, lines)


if __name__ == "__main__":
    main()
