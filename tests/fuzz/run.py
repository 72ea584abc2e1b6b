"""Fuzz the compiled hot path under the address and undefined-behaviour sanitizers; compare with plain on a sample.

    make fuzz ARGS="--inputs 10000000 --seconds 1800"
    python -m tests.fuzz.run --targets scan,rows --inputs 100000 --seed 7
    python -m tests.fuzz.run --targets scan --replay input.bin

Each target runs in a process of its own, with its share of the inputs and the seconds. A process that dies is a
finding: the input that killed it is looked for and written to `findings` in the build folder. What is found becomes a
test beside the module's others.

| what goes wrong                                          | is noticed by                                |
|----------------------------------------------------------|----------------------------------------------|
| memory read or written outside of an object, or freed    | AddressSanitizer, with Python's own malloc off |
| overflow of a signed number, a misaligned read           | UndefinedBehaviorSanitizer                    |
| another outcome than the plain source has                | the comparison, on every 50th input           |
| an exception that is not expected, a message that fails its checks | the target                          |
| a loop that does not end                                 | the time limit                                |
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
HOT = BUILD / "penstock" / "hot"
SANITIZE = "-fsanitize=address,undefined"
STALL_SECONDS = 60
BUILD_SECONDS_MAX = 900

# How many of all inputs a target gets: those that cost little and meet strangers first get most.
SHARES = {
    "scan": 12,
    "headers": 18,
    "ingest": 6,
    "enveloped": 6,
    "message": 11,
    "rows": 12,
    "join": 5,
    "envelope": 13,
    "keyhash": 4,
    "frames": 3,
    "compressed": 4,
    "projected": 2,
    "numbers": 5,
    "appends": 1,
}


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
        **os.environ,
        "LD_PRELOAD": ":".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps much until the process ends
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PENSTOCK_PLAIN": "",
    }


def engine(order: dict[str, object], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One run of the engine, which may die."""
    seconds = float(str(order["seconds"])) + STALL_SECONDS
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.engine", json.dumps(order)]
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, -1, "", f"no end within {seconds} s\n{error.stderr!r}")


def culprit(order: dict[str, object], environment: dict[str, str]) -> Path | None:
    """The input of the last chunk that ends the process by itself, written down; None if none does."""
    inputs = [bytes.fromhex(digits) for digits in json.loads(Path(str(order["chunk"])).read_text())]
    alone = BUILD / "alone"
    while inputs:
        half = inputs[: max(1, len(inputs) // 2)]
        alone.write_text(json.dumps([data.hex() for data in half]))
        died = engine({**order, "replay": str(alone), "compare_every": 1}, environment).returncode != 0
        if len(inputs) == 1:
            return _kept(str(order["target"]), inputs[0]) if died else None
        inputs = half if died else inputs[len(half) :]
    return None


def _kept(target: str, data: bytes) -> Path:
    folder = BUILD / "findings"
    folder.mkdir(exist_ok=True)
    path = folder / f"{target}-{len(list(folder.iterdir()))}.bin"
    path.write_bytes(data)
    return path


def fuzz(target: str, options: argparse.Namespace, environment: dict[str, str], share: float) -> bool:
    """Run one target and print what came of it; whether it went well."""
    order: dict[str, object] = {
        "target": target,
        "seed": options.seed,
        "inputs": int(options.inputs * share),
        "seconds": options.seconds * share,
        "compare_every": options.compare_every,
        "chunk": str(BUILD / f"{target}.chunk"),
        "corpus": str(BUILD / "corpus" / target),
        "compiled": "" if options.as_installed else str(HOT),
    }
    if options.replay:
        order["replay"] = str(BUILD / "alone")
        (BUILD / "alone").write_text(json.dumps([Path(options.replay).read_bytes().hex()]))
    finished = engine(order, environment)
    if finished.returncode == 0:
        print(finished.stdout.strip(), flush=True)
        return True
    print(f"{target}: a finding (exit code {finished.returncode})\n{finished.stderr[-6000:]}", flush=True)
    if not options.replay:
        print(f"the input: {culprit(order, environment)}", flush=True)
    return False


def main() -> int:
    """Fuzz all targets, or some; the exit code says whether anything was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Fuzz the compiled hot path.")
    parser.add_argument("--targets", default=",".join(TARGETS), help="which, with commas between")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seconds", type=float, default=600, help="of all targets together, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare-every", type=int, default=50, help="compare with plain on one input in so many")
    parser.add_argument("--replay", help="run only the input in this file")
    parser.add_argument("--as-installed", action="store_true", help="the modules as they are, without sanitizers")
    options = parser.parse_args()
    targets = options.targets.split(",")
    BUILD.mkdir(parents=True, exist_ok=True)
    if options.as_installed:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    else:
        build()
        environment = sanitized()
    total = sum(SHARES[target] for target in targets)
    went_well = [fuzz(target, options, environment, SHARES[target] / total) for target in targets]
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
