"""Calls of the program `nats`, in the order of a story, each with the program's own check of answers against schemas.

Rules: a call passes if it ends without an error and prints the expected words. `nats` checks each answer of the API
against JetStream's JSON schemas unless NOVALIDATE is set, and ends with an error if one does not fit. `stream graph` is
left out: it draws on a terminal until a key is pressed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.results import Outcome, Result
from tests.conformance.servers import ManagedServer, Plan, System
from tests.conformance.suites import BUILD, carry_out, go_module, program, reason, run_program
from tests.ports import free_ports

_MODULE, _VERSION = "github.com/nats-io/natscli", "v0.5.1"
_CHECKSUM = "h1:Z15ij3P1VlcXOwLUa6kjNEoaVCTDQADctq4GTP1CXnA="
_CALL_S = 30.0
_WATCH_S = 3
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Call:
    """One call: its arguments, and words that it prints. A watch does not end by itself."""

    arguments: str
    prints: str
    is_watch: bool = False
    wants_terminal: bool = False

    @property
    def name(self) -> str:
        """The call as a user writes it; it is the name of the test."""
        return f"nats {self.arguments}"


def _watch(arguments: str, prints: str) -> Call:
    return Call(arguments, prints, is_watch=True)


def _shown(arguments: str, prints: str) -> Call:
    return Call(arguments, prints, wants_terminal=True)


CALLS = (
    Call("stream add ORDERS --subjects orders.> --storage file --allow-direct --defaults", "ORDERS was created"),
    Call("stream add SMALL --subjects small.* --max-msgs 3 --max-msgs-per-subject 2 --max-age 1h --defaults", "SMALL"),
    Call("stream add ORDERS --subjects other --storage file --defaults", "already in use"),
    Call("stream add OVER --subjects orders.eu --storage file --defaults", "overlap"),
    Call("stream ls", "ORDERS"),
    Call("stream ls --names", "SMALL"),
    Call("stream ls --subject small.x --json", "SMALL"),
    Call("pub --jetstream orders.eu.1 first", "Stored in Stream: ORDERS"),
    Call("pub --jetstream orders.eu.2 second -H Color:red", "Sequence: 2"),
    Call("pub --jetstream --count 5 orders.us.{{Count}} row-{{Count}}", "Sequence: 7"),
    Call("pub --jetstream --count 5 small.a x", "Stored in Stream: SMALL"),
    Call("stream info ORDERS", "Messages: 7"),
    Call("stream info ORDERS --json", '"last_seq": 7'),
    Call("stream info SMALL --json", '"messages": 2'),
    Call("stream state ORDERS", "Messages: 7"),
    Call("stream state ORDERS --json", '"messages": 7'),
    Call("stream subjects ORDERS", "orders.eu.1"),
    Call("stream subjects ORDERS orders.us.* --json", '"orders.us.5": 1'),
    Call("stream report", "ORDERS"),
    Call("stream find --names", "ORDERS"),
    Call("stream find --subject orders.> --names", "ORDERS"),
    Call("stream find --empty --names", ""),
    Call("stream get ORDERS 2", "Color: red"),
    Call("stream get ORDERS --last-for orders.us.5 --json", '"seq": 7'),
    Call("stream get ORDERS 99", "no message found"),
    _shown("stream view ORDERS 10 --raw", "second"),
    _shown("stream view ORDERS 10 --id 3 --raw", "row-1"),
    _shown("stream view ORDERS 10 --subject orders.us.4 --raw", "row-4"),
    Call("sub --stream ORDERS --all --terminate-at-end --raw", "row-5"),
    Call("sub orders.eu.* --all --terminate-at-end --raw", "second"),
    Call("sub --stream ORDERS --last-per-subject --terminate-at-end --raw", "row-5"),
    Call("sub --stream ORDERS --start-sequence 6 --terminate-at-end --raw", "row-4"),
    Call("sub --stream ORDERS --last --count 1 --raw", "row-5"),
    Call("sub --stream ORDERS --direct --all --terminate-at-end --raw", "row-5"),
    Call("stream edit ORDERS --description Sales --max-msgs 100 --force", "was updated"),
    Call("stream edit ORDERS --subjects orders.>,returns.> --force", "returns.>"),
    Call("stream copy ORDERS COPY --subjects copy.>", "COPY was created"),
    Call("stream rmm ORDERS 3 --force", ""),
    Call("stream gaps ORDERS --force --no-progress --json", "3"),
    Call("stream info ORDERS --json", '"num_deleted": 1'),
    Call("stream purge ORDERS --subject orders.us.2 --force --json", '"messages": 5'),
    Call("stream purge ORDERS --seq 2 --force --json", '"messages": 4'),
    Call("stream purge ORDERS --keep 2 --force --json", '"messages": 2'),
    Call("stream purge ORDERS --force", "Messages: 0"),
    Call("stream seal COPY --force", "Sealed: true"),
    Call("stream rm COPY --force", ""),
    Call("account info", "JetStream Account Information"),
    Call("stream add benchstream --subjects bench --storage file --allow-direct --defaults", "benchstream was created"),
    Call("bench js pub sync bench --msgs 200 --no-progress", "msgs/sec"),
    Call("bench js pub async bench --msgs 2000 --no-progress --purge", "msgs/sec"),
    Call("bench js ordered --msgs 2000 --no-progress", "msgs/sec"),
    Call("bench js get sync --msgs 100 --no-progress", "msgs/sec"),
    Call("bench js get batch --msgs 1000 --no-progress", "msgs/sec"),
    Call("bench js fetch --msgs 1000 --no-progress", "msgs/sec"),
    Call("bench js consume --msgs 1000 --no-progress", "msgs/sec"),
    Call("stream rm benchstream --force", ""),
    Call("bench js pub sync bench --create --msgs 200 --no-progress", "msgs/sec"),
    Call("bench js pub atomic bench --msgs 200 --batch 20 --no-progress", "msgs/sec"),
    Call("bench js pub fast bench --msgs 200 --batch 20 --no-progress", "msgs/sec"),
    Call("kv add MARKED --marker-ttl 1m", "MARKED"),
    Call("kv del MARKED --force", ""),
    Call("kv add CONFIG --history 5", "CONFIG"),
    Call("kv put CONFIG color red", "red"),
    Call("kv put CONFIG color blue", "blue"),
    Call("kv create CONFIG size 10", "10"),
    Call("kv create CONFIG size 11", "wrong last sequence"),
    Call("kv update CONFIG size 12 3", "12"),
    Call("kv update CONFIG size 13 3", "wrong last sequence"),
    Call("kv get CONFIG color --raw", "blue"),
    Call("kv get CONFIG absent", "key not found"),
    Call("kv get CONFIG color --revision 1 --raw", "red"),
    Call("kv history CONFIG color", "red"),
    Call("kv revert CONFIG color 1 --force", "red"),
    Call("kv ls", "CONFIG"),
    Call("kv ls CONFIG", "color"),
    Call("kv ls CONFIG --verbose --display-value", "12"),
    _watch("kv watch CONFIG", "color"),
    _watch("kv watch CONFIG color --history", "blue"),
    Call("kv info CONFIG", "Values Stored"),
    Call("kv edit CONFIG --history 6", "6"),
    Call("kv del CONFIG color --force", ""),
    Call("kv purge CONFIG size --force", ""),
    Call("kv compact CONFIG --force", ""),
    Call("kv del CONFIG --force", ""),
    Call("bench kv put --msgs 200 --no-progress", "msgs/sec"),
    Call("bench kv get --msgs 200 --no-progress", "msgs/sec"),
    Call("object add FILES --description Pictures", "FILES"),
    Call("object put FILES object.bin --force --no-progress", "object.bin"),
    Call("object ls", "FILES"),
    Call("object ls FILES", "object.bin"),
    Call("object info FILES", "FILES"),
    Call("object info FILES object.bin", "SHA-256"),
    Call("object get FILES object.bin --output got.bin --force --no-progress", "Wrote"),
    _watch("object watch FILES", "object.bin"),
    Call("object edit FILES --description Photos", "Photos"),
    Call("object del FILES object.bin --force", ""),
    Call("object seal FILES --force", "sealed"),
    Call("object del FILES --force", ""),
    Call("stream rm ORDERS --force", ""),
)
_FAILS = {"already in use", "overlap", "no message found", "wrong last sequence", "key not found"}


class NatsCli:
    """The suite."""

    name = "natscli"
    version = f"natscli {_VERSION[1:]}, the program nats with its schema validation"

    def __init__(self) -> None:
        self.program = BUILD / f"natscli-{_VERSION}" / "nats"

    def prepare(self) -> None:
        """Fetch the module and build the program."""
        go_module(_MODULE, _VERSION, _CHECKSUM, self.name)
        if not self.program.exists():
            environment = {"GOBIN": str(self.program.parent), "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
            carry_out(
                [program("go", self.name), "install", f"{_MODULE}/nats@{_VERSION}"], self.name, BUILD, environment
            )

    def names(self) -> list[str]:
        """Return the calls; one that is repeated has a number."""
        return [name for name, _ in numbered()]

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run all calls up to the last wanted one in their order: each builds on those before it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "object.bin").write_bytes(bytes(range(256)) * 2_000)
        server = ManagedServer(system, Plan("cli", folder / "server", free_ports(1)[0], {}))
        outcomes: list[Outcome] = []
        try:
            server.start()
            for name, call in numbered():
                outcomes.append(await self._one(name, call, folder, f"nats://127.0.0.1:{server.plan.port}"))
                if set(tests) <= {outcome.name for outcome in outcomes}:
                    break
        finally:
            server.end()
        return [outcome for outcome in outcomes if outcome.name in tests]

    async def _one(self, name: str, call: Call, folder: Path, url: str) -> Outcome:
        command = [str(self.program), "--no-context", "--server", url, *call.arguments.split()]
        if call.is_watch:
            command = ["timeout", "-s", "INT", str(_WATCH_S), *command]
        if call.wants_terminal:
            command = ["script", "-qec", " ".join(command), "/dev/null"]
        environment = {**os.environ, "XDG_CONFIG_HOME": str(folder), "HOME": str(folder), "NO_COLOR": "1"}
        environment.pop("NOVALIDATE", None)
        ended = await run_program(command, folder, environment, _CALL_S)
        output = " ".join(_COLORS.sub("", ended.output).split())
        if call.prints in output and (call.is_watch or (ended.code != 0) == (call.prints in _FAILS)):
            return Outcome(name, Result.PASSED)
        found = re.search(r"error: .*", output)
        return Outcome(name, Result.FAILED, reason(found[0] if found is not None else output[-160:]))


def numbered() -> list[tuple[str, Call]]:
    """Return the calls with unique names."""
    seen: dict[str, int] = {}
    found = []
    for call in CALLS:
        seen[call.name] = seen.get(call.name, 0) + 1
        found.append((call.name if seen[call.name] == 1 else f"{call.name} ({seen[call.name]})", call))
    return found
