"""`python -m tests.chaos`: real brokers, real faults, for some minutes; the exit code says whether anything was found.

make chaos
make chaos MINUTES=30
make chaos ARGS="--seed 7 --brokers 5 --nats 3"
make chaos ARGS="--faults kill,pause --minutes 1"
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import faults, network, report
from tests.chaos.faults import FAULTS
from tests.chaos.run import STRIKES_MAX, Options, Outcome, run
from tests.chaos.system import RECOVERY_S
from tests.sim.mutants import mutants

_BAR_CHARS = 30
_FEW_FAULTS = 5
_INTERRUPTED = 130


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description="Strike real brokers, and check what clients saw.")
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="of faults (5); some more until all has come to rest"
    )
    parser.add_argument("--strikes", type=int, default=STRIKES_MAX, help="end after so many, if that comes sooner")
    parser.add_argument("--seed", type=int, help="of the plan (one by chance, which is printed)")
    parser.add_argument("--brokers", type=int, default=3, choices=(3, 5), help="(3)")
    parser.add_argument("--nats", type=int, default=1, choices=(1, 3), help="nats-servers, clustered (1)")
    parser.add_argument("--network", choices=("auto", "namespaces", "loopback"), default="auto", help="(auto)")
    parser.add_argument("--faults", help="only these, with commas between")
    parser.add_argument("--folder", type=Path, help="where everything lies; it must not be there yet")
    parser.add_argument("--keep", action="store_true", help="leave the folder there, also if all is well")
    parser.add_argument("--plan", action="store_true", help="print the first faults of the plan, and run nothing")
    parser.add_argument("--mutant", default="", help="plant this mistake of the simulator's in every broker")
    parser.add_argument("--lying-disks", action="store_true", help="have disks that lose what they said was synced")
    parser.add_argument("--no-majority-damage", action="store_true", help="leave out the damage at the end")
    parser.add_argument("--recovery", type=float, default=RECOVERY_S, help="seconds until all must be in sync (180)")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.strikes < 1:
        parser.error("a run strikes for some time: --minutes and --strikes are to be more than 0")
    if options.folder is not None and options.folder.exists():
        parser.error(f"{options.folder} is there already: name a folder that is not")
    options.faults = tuple(options.faults.split(",")) if options.faults else ()
    if unknown := set(options.faults) - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    known = {one.name for one in (*mutants.MUTANTS, *mutants.CLUSTER_MUTANTS, *mutants.MUTANTS_OF_DISKS)}
    if options.mutant and options.mutant not in known:
        parser.error(f"no mutant is called {options.mutant!r}; there are:\n  " + "\n  ".join(sorted(known)))
    return options


def _network(wanted: str) -> network.Network:
    """CannotError where it must be one that this machine does not allow."""
    try:
        network.own_mounts()
        if wanted != "loopback":
            return network.Namespaces()
    except network.CannotError as error:
        if wanted == "namespaces":
            raise
        print(f"on loopback, without what needs namespaces: {error}", flush=True)
    return network.Loopback()


def _bar(passed_s: float, of_s: float) -> str:
    done = min(_BAR_CHARS, int(passed_s * _BAR_CHARS / max(of_s, 1e-9)))
    return f"[{'#' * done:<{_BAR_CHARS}}] {passed_s:5.0f} s"


def _options(given: argparse.Namespace) -> Options:
    return Options(
        seed=random.randrange(1_000_000) if given.seed is None else given.seed,
        seconds=given.minutes * 60,
        brokers=given.brokers,
        nats_servers=given.nats,
        faults=given.faults,
        strikes=given.strikes,
        mutant=given.mutant,
        lies=given.lying_disks,
        damages_most=not given.no_majority_damage,
        recovery_s=given.recovery,
    )


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if all is well."""
    given = _parsed(arguments)
    options = _options(given)
    if given.plan:
        for strike in faults.plan(options.seed, options.brokers, len(FAULTS) * 2, options.faults):
            print(strike)
        return 0
    try:
        links = _network(given.network)
    except network.CannotError as error:
        print(f"this machine has no namespaces for it: {error}", file=sys.stderr)
        return 2
    folder = given.folder or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()

    def show(text: str) -> None:
        print(f"{_bar(time.monotonic() - began_s, options.seconds)}  {text}", flush=True)

    print(f"seed {options.seed}; everything lies in {folder}", flush=True)
    try:
        outcome = asyncio.run(run(folder, links, options, show))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(f"stopped before its end; nothing was checked. What there is lies in {folder}", flush=True)
        return _INTERRUPTED
    _finish(outcome, _again(given, options), keep=given.keep)
    return 0 if outcome.is_good else 1


def _again(given: argparse.Namespace, options: Options) -> str:
    """The command that runs the same plan once more."""
    arguments = ["--seed", str(options.seed), "--brokers", str(options.brokers), "--nats", str(options.nats_servers)]
    if options.faults:
        arguments += ["--faults", ",".join(options.faults)]
    if options.strikes != STRIKES_MAX:
        arguments += ["--strikes", str(options.strikes)]
    if given.network != "auto":
        arguments += ["--network", given.network]
    if options.mutant:
        arguments += ["--mutant", options.mutant]
    if options.lies:
        arguments.append("--lying-disks")
    if not options.damages_most:
        arguments.append("--no-majority-damage")
    if options.recovery_s != RECOVERY_S:
        arguments += ["--recovery", f"{options.recovery_s:g}"]
    return f'make chaos MINUTES={options.seconds / 60:g} ARGS="{shlex.join(arguments)}"'


def _finish(outcome: Outcome, again: str, *, keep: bool) -> None:
    for line in report.lines(outcome):
        print(line, flush=True)
    (outcome.folder / "report.json").write_text(report.as_json(outcome))
    if outcome.is_good:
        struck = sum(outcome.struck.values())
        few = "" if struck >= _FEW_FAULTS else f", but {struck} faults prove little: give it more minutes"
        print(f"all is well{few}", flush=True)
        if not keep:
            shutil.rmtree(outcome.folder, ignore_errors=True)
        return
    for place in sorted(outcome.folder.glob("broker?")):  # a file system of this process's own may be mounted there
        shutil.copytree(place, outcome.folder / "disks" / place.name, ignore=shutil.ignore_patterns("ballast"))
    print(f"it FAILED. What to look at is in {outcome.folder}: history.jsonl, broker*.log, report.json, disks.")
    print(f"The same plan again: {again}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
