"""The cluster demo: kill the leader twice under load, give a broker an empty disk, and read back all acked messages.

Rules: the publishing client is an unmodified nats-py. Every message is published once; a message without an ack may be
stored or not, an acked one must be at the offset of its ack. Every wait has a deadline, and so has the whole demo. All
started processes are stopped, whatever happens.

    main thread         faults of the brokers, and output
    thread of the load  nats-server and the publishers, on an event loop
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.base.errors import OperationalError, PenstockError
from penstock.broker.supervision.child import Launched, free_ports, launched
from penstock.cli.demo.check import Disagreement
from penstock.cli.demo.load import DemoLoad, publishing
from penstock.cli.terminal import output
from penstock.cli.terminal.interrupts import Interrupts
from penstock.client.blocking import client as blocking

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.client.blocking.client import Client
    from penstock.messages import PartitionInfo

_STREAM, _SUBJECT = "orders", "orders.>"
_REPLICAS = 3
_WARM_ACKS = 2_000
_BETWEEN_ACKS = 1_000  # acks between two faults
_WAIT_S = 25.0  # time-out of one wait
_WHOLE_S = 85.0  # time-out of the whole demo
_ASK_S = 2.0
_LOOK_S = 0.05
_READ_S = 30.0

T = TypeVar("T")


def run(data_dir: Path, brokers: int) -> None:
    """Run the demo with that many brokers, on new folders in `data_dir`."""
    Interrupts()
    console = output.console()
    folder = data_dir / "cluster"
    stored = f"the brokers and their nats-server; what they stored is in {folder}"
    try:
        _ClusterDemo(console, folder, brokers, time.monotonic() + _WHOLE_S).run()
    except BaseException:
        _say(console, "Stopped", f"before the end, and nothing was proved: {stored}")
        raise
    _say(console, "Stopped", stored)


class _ClusterDemo:
    def __init__(self, console: Console, folder: Path, count: int, deadline_s: float) -> None:
        self._console = console
        self._folder = folder
        self._deadline_s = deadline_s
        self._addresses = {number: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count), 1)}
        self._running: dict[int, ExitStack] = {}
        self._process_ids: dict[int, int] = {}
        self._nats_url = ""

    def run(self) -> None:
        self._say("Starting", f"a nats-server and {len(self._addresses)} brokers")
        for number in self._addresses:
            _remove_earlier(self._broker_folder(number))
        with publishing(self._folder, _SUBJECT.replace(">", "demo")) as load, self._all_stopped():
            self._nats_url = load.nats_url
            for broker in [self._launch(number) for number in self._addresses]:
                broker.wait_until_ready()  # after launching all: none becomes ready alone
            self._say("Brokers", ", ".join(f"{number} at {address}" for number, address in self._addresses.items()))
            self._say("", f"one cluster on nats-server at {load.nats_url}")
            self._make_stream()
            load.begin()
            self._wait_for_acks(load, _WARM_ACKS)
            self._say("Publishing", f"with an unmodified nats-py: {load.rate():,.0f} acked messages/s")
            for _ in range(2):
                self._kill_leader(load)
            self._replace_disk(load)
            load.stop()
            self._check(load)

    # Faults

    def _make_stream(self) -> None:
        self._until(self._all_live, "all brokers are live")
        with self._client() as client:
            info = client.create_stream(_STREAM, _SUBJECT, timeout=10.0, replicas=_REPLICAS)
        part = info.partitions[0]
        holders = ", ".join(map(str, sorted(part.replicas)))
        who = f"replicas on brokers {holders}; broker {part.leader_id} leads"
        self._say("Stream", f"{info.name} on {info.subject}: {who}")

    def _kill_leader(self, load: DemoLoad) -> None:
        victim = self._leader()
        load.forget_silence()
        self._kill(victim)
        self._say("Killed", f"broker {victim}, the leader, with SIGKILL, while messages are published")
        self._wait_for_acks(load, _BETWEEN_ACKS)
        leader = self._until(lambda: self._other_leader(victim), "another broker leads")
        self._say("", f"broker {leader} leads; the longest time without an ack was {load.longest_silence_s:.2f} s")
        self._restart(victim, load)

    def _replace_disk(self, load: DemoLoad) -> None:
        victim = self._leader()
        load.forget_silence()
        self._kill(victim)
        shutil.rmtree(self._broker_folder(victim))
        self._say("Disk lost", f"killed broker {victim}, the leader, and deleted its data directory")
        self._wait_for_acks(load, _BETWEEN_ACKS)
        self._say("", f"the longest time without an ack was {load.longest_silence_s:.2f} s")
        self._restart(victim, load)

    def _restart(self, number: int, load: DemoLoad) -> None:
        started_s = time.monotonic()
        self._launch(number).wait_until_ready()
        self._until(self._is_whole, f"broker {number} is in sync again")
        seconds = time.monotonic() - started_s
        self._say("", f"broker {number} was started again and is in sync, {seconds:.1f} s later")
        self._wait_for_acks(load, _BETWEEN_ACKS)

    def _check(self, load: DemoLoad) -> None:
        started_s = time.monotonic()
        with self._client() as client:
            count = check(load.acked, client)
        seconds = time.monotonic() - started_s
        unacked = load.sent - len(load.acked)
        self._say("Published", f"{load.sent:,} messages: {len(load.acked):,} were acked, {unacked:,} were not")
        self._say("Read back", f"{count:,} messages in {seconds:.1f} s; offsets without gap, no message twice")
        self._say("Checked", f"all {len(load.acked):,} acked messages are where their acks said: nothing was lost")

    # Brokers

    def _broker_folder(self, number: int) -> Path:
        return self._folder / f"broker-{number}"

    def _launch(self, number: int) -> Launched:
        voters = ",".join(f"{one}@{address}" for one, address in self._addresses.items())
        options = ("--id", str(number), "--cluster", voters, "--nats", self._nats_url)
        stack = ExitStack()
        broker: Launched = stack.enter_context(launched(self._broker_folder(number), *options))
        self._running[number] = stack
        self._process_ids[number] = broker.process.pid
        return broker

    def _kill(self, number: int) -> None:
        os.kill(self._process_ids[number], signal.SIGKILL)
        self._running.pop(number).close()

    @contextmanager
    def _all_stopped(self) -> Iterator[None]:
        """Stop all brokers at the end of the block, whatever happens."""
        try:
            yield
        finally:
            for process_id in [self._process_ids[number] for number in self._running]:
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGTERM)  # all at once, so that they stop in parallel
            with ExitStack() as last:
                for stack in self._running.values():
                    last.push(stack)

    # State of the cluster

    @contextmanager
    def _client(self, number: int | None = None) -> Iterator[Client]:
        numbers = self._running if number is None else (number,)
        at = ",".join(self._addresses[one] for one in numbers)
        with blocking.connect(at, name="penstock-demo", timeout=_ASK_S) as client:
            yield client

    def _all_live(self) -> bool:
        """True if every broker reports all brokers as live."""
        for number in self._running:
            with self._client(number) as client:
                state = client.status(timeout=_ASK_S)
            if state.metadata_leader is None or sum(one.is_live for one in state.brokers) < len(self._addresses):
                return False
        return True

    def _partition(self) -> PartitionInfo:
        with self._client() as client:
            return client.stream(_STREAM, timeout=_ASK_S).partitions[0]

    def _leader(self) -> int:
        return int(self._until(lambda: self._partition().leader_id, "a leader is elected"))

    def _other_leader(self, number: int) -> int | None:
        leader = self._partition().leader_id
        return None if leader is None or leader == number else int(leader)

    def _is_whole(self) -> bool:
        part = self._partition()
        return part.leader_id is not None and set(part.isr) == set(part.replicas)

    def _wait_for_acks(self, load: DemoLoad, count: int) -> None:
        wanted = len(load.acked) + count

        def have_come() -> bool:
            load.check()
            return len(load.acked) >= wanted

        self._until(have_come, f"{count:,} messages are acked")

    def _until(self, look: Callable[[], T | None], what: str) -> T:
        """Return the first true result of `look`. Raise OperationalError at the deadline."""
        deadline_s = min(self._deadline_s, time.monotonic() + _WAIT_S)
        trouble = ""
        while True:
            try:
                if found := look():
                    return found
            except (PenstockError, OSError) as error:
                trouble = f"; the last trouble was: {error}"
            if time.monotonic() >= deadline_s:
                raise OperationalError(f"waited in vain until {what}{trouble}")
            time.sleep(_LOOK_S)

    def _say(self, what: str, text: str) -> None:
        _say(self._console, what, text)


def check(acked: dict[int, int], client: Client) -> int:
    """Read the stream; return its message count. Raise Disagreement if an acked message is not at its offset."""
    found: dict[int, int] = {}
    expected_offset = 0
    for batch in client.read(_STREAM, timeout=_READ_S):
        for offset, value in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True):
            number = int(value)
            if offset != expected_offset:
                raise Disagreement(f"offset {offset} follows offset {expected_offset - 1}")
            if number in found:
                raise Disagreement(f"message {number} is stored twice, at {found[number]} and at {offset}")
            found[number] = offset
            expected_offset += 1
    for number, offset in acked.items():
        if found.get(number) != offset:
            raise Disagreement(f"message {number} was acked at offset {offset}, and is at {found.get(number)}")
    return expected_offset


def _say(console: Console, what: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{what:<12}", "bold cyan"), text), soft_wrap=True)


def _remove_earlier(folder: Path) -> None:
    """Delete the data of an earlier demo; leave other files alone, which the broker then rejects."""
    if (folder / "penstock.json").is_file():
        shutil.rmtree(folder)
