"""Make inputs and run them, in a process of its own that a finding may kill.

Rules: the inputs follow from the target, the seed, the round and the corpus alone. A chunk of inputs is written down
before the first of it is run, so that whoever started this process can find the one that killed it.

    python -m tests.fuzz.engine '{"target": "scan", "seed": 1, "round": 0, "inputs": 1000, …}'

| a quarter of the inputs | made by the target, from the types and encoders of the format: sound, or wrong here  |
| the others              | those, or kept ones, with bytes changed, taken out, doubled, spliced; of these three |
|                         | quarters with their checksums put right, where the format has any                    |

An input whose outcome looks unlike all before it is kept, to be changed further. While tracing, so is one that runs a
line behind another one for the first time.
"""

from __future__ import annotations

import gc
import json
import re
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from penstock import hot
from tests import hot_modes
from tests.fuzz import corpus, mutation
from tests.fuzz.target import INPUT_SECONDS_MAX, MEMORY_BYTES_PER_BYTE, Modules, Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.tracing import Tracer, reached, wanted_of

CHUNK_INPUTS = 1_000
CHUNK_INPUTS_SLOW = 50
KEPT_INPUTS_MAX = 4_000
GROWTH_BYTES_MAX = 256 * 1024 * 1024
"""Of the process, however many inputs it runs."""

MEMORY_EVERY = 2_000
"""How often the memory that an input takes is measured, which makes it many times slower."""

_SHOWN_CHARS = 400


class FindingError(AssertionError):
    """What an input may not do, and the input."""

    def __init__(self, what: str, data: bytes) -> None:
        super().__init__(f"{what}\ninput: {data.hex()}")


def chunks(chance: Random, kept: list[bytes], target: Target, inputs: int) -> Iterator[list[bytes]]:
    """So many inputs in all: first what was kept, as it is."""
    size = CHUNK_INPUTS_SLOW if target.is_slow else CHUNK_INPUTS
    done = min(len(kept), inputs)
    if done:
        yield kept[:done]
    pieces = (*mutation.NUMBERS, *target.pieces, *target.pieces)
    while done < inputs:
        count = min(size, inputs - done)
        fresh = [target.make(chance) for _ in range((count + 3) // 4)]
        yield [*fresh, *_changed(chance, fresh, kept, target, pieces, count - len(fresh))]
        done += count


def _changed(
    chance: Random, fresh: list[bytes], kept: list[bytes], target: Target, pieces: tuple[bytes, ...], count: int
) -> Iterator[bytes]:
    random, seal = chance.random, target.seal
    pools = (fresh, kept or fresh)
    for _ in range(count):
        pool, other = pools[int(random() * 2)], pools[int(random() * 2)]
        data = mutation.changed(chance, pool[int(random() * len(pool))], other[int(random() * len(other))], pieces)
        yield seal(data) if seal is not None and random() < 0.75 else data


def looks(outcome: object) -> str:
    """An outcome without its numbers and small letters: what of it is of another kind."""
    if isinstance(outcome, str):
        return outcome
    return re.sub(r"[0-9]+|\\x..|[a-z]+", "", repr(outcome)[:_SHOWN_CHARS])


class Run:
    """One run of the engine."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.target = TARGETS[order["target"]]
        self.kept = corpus.read(self.target.name, order.get("corpus"))
        self._seen: set[str] = set()
        self._compares = self.target.compares and order.get("compare_every", 0) and hot.is_compiled()
        self.done = self.compared = 0

    def inputs(self) -> Iterator[list[bytes]]:
        """In chunks, each written down."""
        if replay := self.order.get("replay"):
            yield [bytes.fromhex(digits) for digits in json.loads(Path(replay).read_text())]
            return
        order = self.order
        chance = Random(f"{self.target.name} {order['seed']} {order.get('round', 0)}")
        kept = self.kept if order.get("round", 0) == 0 else self.kept[: KEPT_INPUTS_MAX // 2]
        for chunk in chunks(chance, kept, self.target, order["inputs"]):
            if path := order.get("chunk"):
                Path(path).write_text(json.dumps([data.hex() for data in chunk]))
            yield chunk

    def fuzz(self) -> dict[str, Any]:
        """Run inputs until there are enough of them, or the time is over."""
        run, modules, clock = self.target.run, hot_modes.running, time.perf_counter
        every = self.order.get("compare_every", 0) or 50
        begin = clock()
        base_bytes = _held_bytes()
        gc.freeze()  # what is there before the first input is not looked through at every measurement
        for chunk in self.inputs():
            for number, data in enumerate(chunk):
                if (self.done + number) % MEMORY_EVERY == 3:
                    self._measure(data)
                before = clock()
                try:
                    outcome = run(modules, data)
                except Exception as error:
                    raise FindingError(f"{type(error).__name__}: {error}", data) from error
                if clock() - before > INPUT_SECONDS_MAX:
                    self._time(data)
                if type(outcome) is str or number % every == 0:
                    self._look(data, outcome, number % every == 0)
            self.done += len(chunk)
            if _held_bytes() - base_bytes > GROWTH_BYTES_MAX + self.target.memory_bytes and _grew(base_bytes):
                raise FindingError(f"the process grew by more than {GROWTH_BYTES_MAX} bytes", chunk[-1])
            if clock() - begin > self.order["seconds"]:
                break
        return {
            "target": self.target.name,
            "inputs": self.done,
            "compared": self.compared,
            "kinds": len(self._seen),
            "seconds": round(clock() - begin, 2),
        }

    def trace(self) -> dict[str, Any]:
        """The same under tracing: what of the decoder they reach, and the inputs that it takes."""
        wanted = wanted_of(self.target.covers)
        firsts: list[tuple[bytes, frozenset[Any]]] = []
        kinds: dict[str, bytes] = {}
        total: set[Any] = set()
        begin = time.process_time()
        for chunk in self.inputs():
            for data in chunk:
                if time.process_time() - begin > self.order["seconds"]:
                    break
                try:
                    with Tracer(wanted.files) as tracer:
                        outcome = self.target.run(hot_modes.running, data)
                except Exception as error:
                    raise FindingError(f"{type(error).__name__}: {error}", data) from error
                if not tracer.arcs <= total:
                    total |= tracer.arcs
                    firsts.append((data, frozenset(tracer.arcs)))
                    if data not in self.kept:
                        self.kept.append(data)
                known = kinds.get(look := looks(outcome))
                if known is None or len(data) < len(known):
                    kinds[look] = data
                self._look(data, outcome, False)
            self.done += len(chunk)
            if time.process_time() - begin > self.order["seconds"]:
                break
        lines, branches = reached(total, wanted)
        kept = corpus.minimised(firsts, kinds.values())
        if keep := self.order.get("keep"):
            corpus.write(Path(keep), kept)
        return {
            "target": self.target.name,
            "inputs": self.done,
            "lines": len(lines),
            "lines_wanted": len(wanted.lines),
            "branches": len(branches),
            "branches_wanted": len(wanted.branches),
            "missed": sorted(f"{Path(path).name}:{line}" for path, line in wanted.lines - lines),
            "corpus": len(kept),
        }

    def _look(self, data: bytes, outcome: object, compare: bool) -> None:
        if compare and self._compares:
            expected = self.target.run(hot_modes.plain, data)
            if outcome != expected:
                raise FindingError(f"compiled {outcome!r}\nplain    {expected!r}", data)
            self.compared += 1
        if len(self.kept) < KEPT_INPUTS_MAX and (look := looks(outcome)) not in self._seen:
            self._seen.add(look)
            self.kept.append(data)

    def _time(self, data: bytes) -> None:
        """It took long: whether it is the input, or somebody else who had the processor."""
        cpu_s = min(_cpu_s(self.target.run, data) for _ in range(2))
        if cpu_s > INPUT_SECONDS_MAX:
            raise FindingError(f"{cpu_s:.2f} s of CPU for {len(data)} bytes", data)

    def _measure(self, data: bytes) -> None:
        self.target.run(hot_modes.running, data)  # what is cached once is of nobody
        gc.collect()
        tracemalloc.start()
        try:
            self.target.run(hot_modes.running, data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if peak > self.target.memory_bytes + MEMORY_BYTES_PER_BYTE * len(data):
            raise FindingError(f"{peak} bytes of memory for {len(data)} bytes", data)


def _cpu_s(run: Callable[[Modules, bytes], object], data: bytes) -> float:
    before = time.process_time()
    run(hot_modes.running, data)
    return time.process_time() - before


def _held_bytes() -> int:
    """What the process holds now; what one input takes for a while is looked at by itself."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _grew(base_bytes: int) -> bool:
    """Whether that is so without what only waits to be collected."""
    gc.collect()
    return _held_bytes() - base_bytes > GROWTH_BYTES_MAX


def outcomes(target: Target, inputs: list[bytes]) -> list[str]:
    """What comes of each, as text, in the way that the hot path runs in this process."""
    return [repr(target.run(hot_modes.running, data)) for data in inputs]


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run what `order` says; with `trace` what is reached is counted."""
    one = Run(order)
    found = one.trace() if order.get("trace") else one.fuzz()
    if (folder := order.get("corpus")) and not order.get("replay"):
        corpus.write(Path(folder), one.kept[:KEPT_INPUTS_MAX])
    return found


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if arguments.get("compiled"):
        hot.__path__.insert(0, arguments["compiled"])
    print(json.dumps(run(arguments)))
