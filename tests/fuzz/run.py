"""Fuzz every decoder that faces a socket or a file, as many processes at a time as --jobs, at the lowest priority.

    python dev.py fuzz                                   every target, up to 10,000,000 inputs each; goes on later
    python dev.py fuzz --targets frames,scan --seconds 60
    python dev.py fuzz --coverage                        what of each decoder is reached; fails below 90 % of its lines
    python dev.py fuzz --asan --targets scan,rows        the hot path compiled with gcc's sanitizers
    python dev.py fuzz --targets scan --replay input.bin
    python dev.py fuzz --table                           what was done so far

| what goes wrong                                              | is noticed by                                        |
|--------------------------------------------------------------|------------------------------------------------------|
| an exception that the decoder does not declare               | the target                                           |
| what is decoded is not what is encoded of it; what comes out | the target                                           |
| … depends on where the reads end                             |                                                      |
| another outcome compiled than plain                          | the comparison, on every 50th input                  |
| the process dies                                             | its parent, which looks for the input                |
| an input takes long, or a loop does not end                  | INPUT_SECONDS_MAX; the time limit of the process     |
| an input takes much memory; the process grows                | tracemalloc on every 2,000th input; GROWTH_BYTES_MAX |
| memory read or written outside of an object, or freed        | AddressSanitizer, with Python's own malloc off       |
| overflow of a signed number, a misaligned read               | UndefinedBehaviorSanitizer                           |

A finding is written to `build/fuzz/findings`; its target rests until `--again`. docs/how-to/fuzz.md says what then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
HOT = BUILD / "penstock" / "hot"
STATE = BUILD / "state.json"
MEMORY = Path("/dev/shm")
SANITIZE = "-fsanitize=address,undefined"
INPUTS = 10_000_000
ROUND_SECONDS = 60.0
TRACE_SECONDS = 5.0
"""Of CPU."""
TRACE_INPUTS = 20_000
STALL_SECONDS = 120
BUILD_SECONDS_MAX = 900
COVERAGE_MIN = 0.9
_INPUT = re.compile(r"input: ([0-9a-f]*)")

State = dict[str, dict[str, Any]]


def build() -> None:
    """Compile the hot path with sanitizers, into a folder of its own; what is fresh stays."""
    flags = f"{SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g1"
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", BUILD, "--build-temp", f"{BUILD}-temp"],
        cwd=ROOT,
        env={**os.environ, "CFLAGS": flags, "LDFLAGS": SANITIZE, "REQUIRE_CYTHON": "1"},
        check=True,
        timeout=BUILD_SECONDS_MAX,
    )


def sanitized() -> dict[str, str]:
    """The environment of a process that runs modules with sanitizers."""
    compiler = os.environ.get("CC", "gcc")
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        **as_installed(),
        "LD_PRELOAD": ":".join(found),
        # Python keeps much until the process ends. Freed memory is held back, to find its use: 256 MB by default, which
        # would count as growth of the process.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
    }


def as_installed(*, plain: bool = False) -> dict[str, str]:
    """The environment of a process that runs the modules as they are, or plain."""
    found = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PENSTOCK_PLAIN": "1" if plain else ""}
    if MEMORY.is_dir():
        found["TMPDIR"] = str(MEMORY)  # some targets are read from real files: many times faster there
    return found


def engine(order: dict[str, object], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One run of the engine, which may die."""
    seconds = 10 * float(str(order["seconds"])) + STALL_SECONDS  # others may have the processor
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.engine", json.dumps(order)]
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, -1, "", f"no end within {seconds} s\n{error.stderr!r}")


def culprit(order: dict[str, object], environment: dict[str, str], said: str) -> bytes | None:
    """The input that ends the process: as it said itself, or looked for in its last chunk; None if none does."""
    if found := _INPUT.findall(said):
        return bytes.fromhex(found[-1])
    chunk = Path(str(order["chunk"]))
    inputs = [bytes.fromhex(digits) for digits in json.loads(chunk.read_text())] if chunk.exists() else []
    while inputs:
        half = inputs[: max(1, len(inputs) // 2)]
        died = (
            engine(
                {**order, "replay": str(written(half, str(order["target"]))), "compare_every": 1}, environment
            ).returncode
            != 0
        )
        if len(inputs) == 1:
            return inputs[0] if died else None
        inputs = half if died else inputs[len(half) :]
    return None


def written(inputs: Iterable[bytes], target: str) -> Path:
    """These inputs in a file that the engine replays."""
    path = BUILD / f"{target}.alone"
    path.write_text(json.dumps([data.hex() for data in inputs]))
    return path


def read_state() -> State:
    """How far each target is."""
    try:
        found: State = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return found


def write_state(state: State) -> None:
    """Replace it as a whole: a run may be cut short at any time."""
    new = STATE.with_suffix(".new")
    new.write_text(json.dumps(state, indent=1))
    new.rename(STATE)


class Runner:
    """All rounds of one command."""

    def __init__(self, options: argparse.Namespace, targets: list[str]) -> None:
        self.options = options
        self.targets = targets
        self.state = read_state()
        self.kind = "asan" if options.asan else "inputs"  # what is counted
        self.environment = sanitized() if options.asan else as_installed()
        self._begin = time.monotonic()
        self.went_well = True
        self._writing = Lock()

    def of(self, target: str) -> dict[str, Any]:
        """What is known of a target."""
        return self.state.setdefault(
            target, {"inputs": 0, "seconds": 0.0, "asan": 0, "asan_seconds": 0.0, "rounds": 0, "findings": []}
        )

    def run(self) -> bool:
        """Go round until all are done or the time is over; whether nothing was found."""
        for target in self.targets:
            if self.options.again:
                self.of(target)["findings"] = []
        while waiting := [target for target in self.targets if self._wants(target)]:
            if self._left_s() <= 0:
                break
            with ThreadPoolExecutor(self.options.jobs) as pool:  # each waits for a process
                try:
                    list(pool.map(self._round, waiting))
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        return self.went_well

    def _wants(self, target: str) -> bool:
        known = self.of(target)
        return known[self.kind] < self.options.inputs and not known["findings"]

    def _left_s(self) -> float:
        return float(self.options.seconds) - (time.monotonic() - self._begin)

    def _round(self, target: str) -> None:
        if self._left_s() <= 0:
            return
        known = self.of(target)
        order: dict[str, object] = {
            "target": target,
            "seed": self.options.seed,
            "round": known["rounds"],
            "inputs": self.options.inputs - known[self.kind],
            "seconds": min(ROUND_SECONDS, max(1.0, self._left_s())),
            "compare_every": self.options.compare_every,
            "chunk": str(BUILD / f"{target}.chunk"),
            "corpus": str(BUILD / "corpus" / target),
            "compiled": str(HOT) if self.options.asan else "",
        }
        finished = engine(order, self.environment)
        known["rounds"] += 1
        if finished.returncode == 0:
            found = json.loads(finished.stdout)
            known[self.kind] += found["inputs"]
            seconds = "asan_seconds" if self.options.asan else "seconds"
            known[seconds] = round(known[seconds] + found["seconds"], 1)
        else:
            self.went_well = False
            known["findings"].append(self._keep(target, order, finished))
        known["corpus"] = len(corpus.read(target, str(BUILD / "corpus" / target)))
        with self._writing:
            write_state(self.state)
            self._show(target)

    def _keep(self, target: str, order: dict[str, object], finished: subprocess.CompletedProcess[str]) -> str:
        data = culprit(order, self.environment, finished.stderr)
        folder = BUILD / "findings"
        folder.mkdir(exist_ok=True)
        name = f"{target}-{'not-found' if data is None else corpus.name_of(data)}"
        (folder / f"{name}.txt").write_text(finished.stderr)
        if data is not None:
            (folder / f"{name}.bin").write_bytes(data)
        print(f"\n{target}: a finding (exit code {finished.returncode}): {folder / name}.*\n{finished.stderr[-2000:]}")
        return name

    def _show(self, target: str) -> None:
        wanted = self.options.inputs * len(self.targets)
        done = sum(min(self.of(one)[self.kind], self.options.inputs) for one in self.targets)
        columns = 30
        bar = "█" * int(columns * done / wanted)
        text = (
            f"{bar:░<{columns}} {100 * done / wanted:5.1f} %  {done:,} inputs, {target} {self.of(target)[self.kind]:,}"
        )
        print(f"\r{text:<100}" if sys.stdout.isatty() else text, end="" if sys.stdout.isatty() else "\n", flush=True)


def coverage(targets: list[str], options: argparse.Namespace, state: State) -> bool:
    """Trace each target plain; whether enough is reached of each. With `--keep` the inputs that reach it are kept."""
    went_well = True
    for target in targets:
        folder = BUILD / "traced" / target
        shutil.rmtree(folder, ignore_errors=True)
        order: dict[str, object] = {
            "target": target,
            "seed": options.seed,
            "inputs": TRACE_INPUTS,
            "seconds": TRACE_SECONDS * (3 if TARGETS[target].is_slow else 1),
            "trace": True,
            "keep": str(folder),
            "corpus": str(BUILD / "corpus" / target),
            "chunk": str(BUILD / f"{target}.chunk"),
        }
        finished = engine(order, as_installed(plain=True))
        if finished.returncode:
            print(f"{target}: a finding\n{finished.stderr[-3000:]}")
            went_well = False
            continue
        found = json.loads(finished.stdout)
        lines = found["lines"] / max(1, found["lines_wanted"])
        branches = found["branches"] / max(1, found["branches_wanted"])
        known = state.setdefault(
            target, {"inputs": 0, "seconds": 0.0, "asan": 0, "asan_seconds": 0.0, "rounds": 0, "findings": []}
        )
        known |= {"lines": round(lines, 4), "branches": round(branches, 4), "kept": found["corpus"]}
        write_state(state)
        print(
            f"{target:<16} {lines:6.1%} of lines, {branches:6.1%} of branches, by {found['corpus']} inputs", flush=True
        )
        if lines < COVERAGE_MIN or options.missed:
            print(f"  not reached: {' '.join(found['missed'])}")
        went_well &= lines >= COVERAGE_MIN
        if options.keep:
            shutil.rmtree(corpus.KEPT / target, ignore_errors=True)
            shutil.copytree(folder, corpus.KEPT / target)
    return went_well


def table(state: State, targets: Iterable[str]) -> str:
    """What was done, as people read it."""
    head = ("target", "inputs", "inputs/s", "with sanitizers", "lines", "branches", "corpus", "findings")
    rows = [head]
    for target in targets:
        known = state.get(target, {})
        seconds = known.get("seconds", 0.0)
        shares = [f"{known[name]:.1%}" if name in known else "" for name in ("lines", "branches")]
        rows.append(
            (
                target,
                f"{known.get('inputs', 0):,}",
                f"{known.get('inputs', 0) / seconds:,.0f}" if seconds else "",
                f"{known.get('asan', 0):,}",
                *shares,
                str(len(list((corpus.KEPT / target).glob("*")))),
                str(len(known.get("findings", ()))),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [" | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-|-".join("-" * width for width in widths), *lines[1:]])


def record(state: State, path: Path, seed: int) -> None:
    """What was done, for `docs/benchmarks`."""
    kept = {
        name: {**state[name], "kept": len(list((corpus.KEPT / name).glob("*")))} for name in TARGETS if name in state
    }
    path.write_text(json.dumps({"what": "fuzz", "seed": seed, "targets": kept}, indent=1) + "\n")


def replay(target: str, file: Path, options: argparse.Namespace) -> bool:
    """Run one input, compiled and plain."""
    order: dict[str, object] = {"target": target, "seed": 1, "seconds": 60, "inputs": 1, "compare_every": 1}
    order |= {"replay": str(written([file.read_bytes()], target)), "compiled": str(HOT) if options.asan else ""}
    finished = engine(order, sanitized() if options.asan else as_installed())
    print(finished.stdout.strip() or finished.stderr[-6000:])
    return finished.returncode == 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dev.py fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(TARGETS), help="which, with commas between; all")
    parser.add_argument(
        "--inputs", type=int, default=INPUTS, help=f"of each target, those of earlier runs too ({INPUTS:,})"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all together, at most")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time (1)")
    parser.add_argument("--seed", type=int, default=20261125)
    parser.add_argument("--compare-every", type=int, default=50, help="compare with plain on one input in so many (50)")
    parser.add_argument("--asan", action="store_true", help="with gcc's address and undefined-behaviour sanitizers")
    parser.add_argument(
        "--coverage", action="store_true", help="trace the decoders; fails below 90 %% of the lines of one"
    )
    parser.add_argument("--missed", action="store_true", help="with --coverage: name the lines that are not reached")
    parser.add_argument("--keep", action="store_true", help="with --coverage: replace the corpus of the repository")
    parser.add_argument("--again", action="store_true", help="also targets that have a finding")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs did")
    parser.add_argument("--replay", type=Path, help="run only the input in this file, of one target")
    parser.add_argument(
        "--table",
        nargs="?",
        const=STATE,
        type=Path,
        metavar="FILE",
        help="only show what was done, or what FILE records",
    )
    parser.add_argument("--record", type=Path, help="write what was done to this JSON file, too")
    options = parser.parse_args()
    if unknown := set(options.targets.split(",")) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    return options


def main() -> int:
    """Fuzz all targets, or some; the exit code says whether anything was found."""
    options = _parsed()
    targets = options.targets.split(",")
    BUILD.mkdir(parents=True, exist_ok=True)
    os.nice(5 if options.coverage else 19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # once the rounds that run have ended
    if options.fresh:
        STATE.unlink(missing_ok=True)
    if options.asan and not options.table:
        build()
    if options.replay:
        return 0 if replay(targets[0], options.replay, options) else 1
    went_well = True
    if options.coverage:
        went_well = coverage(targets, options, read_state())
    elif not options.table:
        went_well = Runner(options, targets).run()
    known = read_state() if options.table in (None, STATE) else json.loads(options.table.read_text())["targets"]
    print(f"\n{table(known, targets)}")
    if options.record:
        record(read_state(), options.record, options.seed)
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
