"""Make inputs and run them, in a process of its own that a finding may kill.

Rules: the inputs follow from the target and the seed alone. A chunk of inputs is written down before the first of it is
run, so that whoever started this process can find the one that killed it.

    python -m tests.fuzz.engine '{"target": "scan", "seed": 1, "inputs": 1000, …}'

Theory: an input is an earlier one with some bytes changed, taken out, repeated, or replaced by a piece that the format
knows. An input whose outcome looks unlike all before it is kept, to be changed further.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from penstock import hot

CHUNK_INPUTS = 1_000
INPUT_BYTES_MAX = 4_096
KEPT_INPUTS_MAX = 4_000
_SHOWN_CHARS = 400


def changed(chance: Random, data: bytes, other: bytes, pieces: tuple[bytes, ...]) -> bytes:
    """`data` with one to four changes, some of which take from `other`."""
    out = bytearray(data)
    for _ in range(1 + int(chance.random() * chance.random() * 4)):
        kind = int(chance.random() * 8)
        at = int(chance.random() * (len(out) + 1))
        size = 1 + int(chance.random() * chance.random() * 16)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(chance.random() * 8)
        elif kind == 1 and at < len(out):
            out[at] = int(chance.random() * 256)
        elif kind == 2:
            del out[at : at + size]
        elif kind == 3:
            out[at:at] = out[at : at + size]
        elif kind == 4:
            out[at:at] = chance.choice(pieces)
        elif kind == 5:
            piece = chance.choice(pieces)
            out[at : at + len(piece)] = piece
        elif kind == 6:
            begin = int(chance.random() * (len(other) + 1))
            out[at : at + size] = other[begin : begin + 2 * size]
        else:
            out[at:] = other[int(chance.random() * (len(other) + 1)) :]
    return bytes(out[:INPUT_BYTES_MAX])


def chunks(chance: Random, kept: list[bytes], pieces: tuple[bytes, ...], inputs: int) -> Iterator[list[bytes]]:
    """So many inputs in all: first what was kept, as it is, then changes of it."""
    done = len(kept)
    yield list(kept)
    while done < inputs:
        count = min(CHUNK_INPUTS, inputs - done)
        yield [changed(chance, chance.choice(kept), chance.choice(kept), pieces) for _ in range(count)]
        done += count


def looks(outcome: object) -> str:
    """An outcome without its numbers and small letters: what of it is of another kind."""
    return re.sub(r"[0-9]+|\\x..|[a-z]+", "", repr(outcome)[:_SHOWN_CHARS])


def _read(path: str) -> list[bytes]:
    return [bytes.fromhex(digits) for digits in json.loads(Path(path).read_text())]


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run what `order` says: target, seed, inputs, seconds, compare_every, chunk (a path), corpus (a path)."""
    from tests import hot_modes
    from tests.fuzz.seeds import PIECES, SEEDS
    from tests.fuzz.targets import TARGETS

    target = TARGETS[order["target"]]
    corpus = sorted(path.read_bytes() for path in Path(order["corpus"]).glob("*"))
    kept = [*SEEDS[order["target"]], *corpus]
    chance = Random(f"{order['target']} {order['seed']}")
    seen: set[str] = set()
    done = compared = 0
    begin = time.monotonic()
    replayed = order.get("replay")
    source = [_read(replayed)] if replayed else chunks(chance, kept, PIECES, order["inputs"])
    for chunk in source:
        if not replayed:
            Path(order["chunk"]).write_text(json.dumps([data.hex() for data in chunk]))
        for number, data in enumerate(chunk):
            outcome = target(hot_modes.running, data)
            if done == 0 or number % order["compare_every"] == 0:
                expected = target(hot_modes.plain, data)
                assert outcome == expected, f"{data.hex()}\ncompiled {outcome!r}\nplain    {expected!r}"
                compared += 1
                if len(kept) < KEPT_INPUTS_MAX and (look := looks(outcome)) not in seen:
                    seen.add(look)
                    kept.append(data)
        done += len(chunk)
        if time.monotonic() - begin > order["seconds"]:
            break
    return {
        "target": order["target"],
        "inputs": done,
        "compared": compared,
        "kinds": len(seen),
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time(), 1),
    }


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if arguments["compiled"]:
        hot.__path__.insert(0, arguments["compiled"])
    print(json.dumps(run(arguments)))
