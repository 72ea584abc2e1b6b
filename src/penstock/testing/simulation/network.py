"""Simulated TCP connections between machines: bytes arrive late or not at all, but never twice or out of order.

Rules: Within one connection everything arrives once and in order. Network faults show in other ways. A blocked
direction holds everything back until it is free again, or until the waiting side gives up. A reset loses what was in
transit; the other side may still receive a part of it, even after the first messages of the next connection. Each
direction is blocked on its own, so requests may arrive whose answers never come.

| fault             | the sending side sees                | the other side sees                            |
|-------------------|--------------------------------------|------------------------------------------------|
| reset             | `lost`, at once                      | some of what was in transit, then `lost`       |
| blocked, short    | delay                                | delay                                          |
| blocked, long     | `lost` after the time-out            | some of what was in transit, then `lost`       |
| stalled           | delay of what it sends               | nothing until the stall ends                   |
| half open         | `lost`, at once                      | all that was sent, much later, then `lost`     |
| a machine dies    | `lost`, unless blocked               | nothing: it is not running                     |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from random import Random

from penstock.testing.simulation.scheduler import Call, Scheduler, Timer

CONNECT_TIMEOUT_US = 3_000_000
_SILENCE_US = (2_000_000, 8_000_000)  # range of the time after which a side gives up on a blocked direction


class _Way:
    """One direction of a connection."""

    __slots__ = ("arrives_us", "held", "is_stalled", "on_the_way")

    def __init__(self) -> None:
        self.arrives_us = 0  # arrival time of the last message
        self.held: list[Call] = []
        self.is_stalled = False
        self.on_the_way: deque[Timer] = deque()  # the first of them may have arrived already

    def forget_arrived(self) -> None:
        """Keep only the messages in transit."""
        while self.on_the_way and self.on_the_way[0].is_over:
            self.on_the_way.popleft()


class SimConnection:
    """One TCP connection. `lost` and `target_lost` are called once, unless that side has closed it."""

    def __init__(self, network: Network, source: str, target: str, lost: Call) -> None:
        self.source = source
        self.target = target
        self.is_open = True
        self.lost = lost
        self.target_lost: Call | None = None  # set by the accepting side
        self._network = network
        self._there, self._back = _Way(), _Way()

    def send(self, call: Call) -> None:
        """Have the target run `call` on arrival."""
        self._send(self._there, self.source, self.target, call)

    def send_back(self, call: Call) -> None:
        """Have the source run `call` on arrival."""
        self._send(self._back, self.target, self.source, call)

    def _send(self, way: _Way, sender: str, receiver: str, call: Call) -> None:
        if not self.is_open:
            return
        if way.is_stalled or way.held or self._network.is_blocked(sender, receiver):
            if not (way.held or way.is_stalled):
                self._network.wait_for(self)
            way.held.append(call)
            return
        network = self._network
        arrives_us = max(way.arrives_us, network.scheduler.now_us + network.delay_us())
        way.arrives_us = arrives_us
        way.forget_arrived()
        way.on_the_way.append(network.scheduler.at(arrives_us, call))

    def unblocked(self) -> None:
        """Send what was held back in each direction that is free now."""
        for way, ends in ((self._there, (self.source, self.target)), (self._back, (self.target, self.source))):
            if way.held and self.is_open and not way.is_stalled and not self._network.is_blocked(*ends):
                held, way.held = way.held, []
                for call in held:
                    self._send(way, *ends, call)

    def stall(self) -> None:
        """Hold back what the source has sent and sends, until `go_on`; neither side is informed."""
        way = self._there
        way.forget_arrived()
        way.is_stalled = True
        way.held[:0] = [timer.take() for timer in way.on_the_way]
        way.on_the_way.clear()

    def go_on(self) -> None:
        """End the stall."""
        self._there.is_stalled = False
        self.unblocked()

    def leave_half_open(self, arrives_us: int) -> None:
        """Break it for the source only; at `arrives_us` the same run of the target receives what was sent."""
        if not self.is_open:
            return
        self.stall()
        held, lost, scheduler = self._there.held[:], self.target_lost, self._network.scheduler
        self._there.held.clear()
        self.target_lost = None
        self.cut()

        def arrive() -> None:
            for call in held:
                call()
            if lost is not None:
                lost()

        scheduler.at(arrives_us, arrive)

    def cut(self) -> None:
        """Break it: both sides are informed, and only the first part of what was in transit arrives."""
        if not self.is_open:
            return
        self.is_open = False
        network = self._network
        network.closed(self)
        for way, lost in ((self._there, self.target_lost), (self._back, self.lost)):
            way.held.clear()
            way.forget_arrived()
            kept = int(network.random.random() * (len(way.on_the_way) + 1)) if way is self._there else 0
            for timer in islice(way.on_the_way, kept, None):
                timer.cancel()
            if lost is not None:
                network.scheduler.at(max(way.arrives_us, network.scheduler.now_us + 1), lost)

    def close(self, *, by_source: bool) -> None:
        """Close it from one side, or because that side died: the other is informed, this one gets nothing more."""
        if not self.is_open:
            return
        self.is_open = False
        network = self._network
        network.closed(self)
        dead, other = (self._back, self._there) if by_source else (self._there, self._back)
        for timer in dead.on_the_way:
            timer.cancel()
        dead.held.clear()
        other.held.clear()
        lost = self.target_lost if by_source else self.lost
        ends = (self.source, self.target) if by_source else (self.target, self.source)
        if lost is not None:
            wait_us = network.silence_us() if network.is_blocked(*ends) else network.delay_us()
            network.scheduler.at(max(other.arrives_us, network.scheduler.now_us + wait_us), lost)


class Network:
    """All connections, and the blocked directions."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.delay_us_range = (50, 600)
        self._blocked: dict[tuple[str, str], set[int]] = {}  # direction → numbers of its blocks: see `block`
        self._blocks = 0
        self._connections: dict[SimConnection, None] = {}
        self._accept: dict[str, Callable[[SimConnection], None] | None] = {}

    def delay_us(self) -> int:
        """Draw the delay of the next message."""
        low, high = self.delay_us_range
        chance = self.random.random()
        return low + int(chance * (high - low)) if chance < 0.98 else high * 20

    def silence_us(self) -> int:
        """Draw the time after which a waiting side gives up."""
        low, high = _SILENCE_US
        return low + int(self.random.random() * (high - low))

    def listen(self, name: str, accept: Callable[[SimConnection], None] | None) -> None:
        """Accept connections to `name` with `accept` from now on; None: refuse them."""
        self._accept[name] = accept

    def connect(self, source: str, target: str, done: Callable[[SimConnection | None], None], lost: Call) -> None:
        """Connect. `done` receives the connection, or None if it failed; `lost` is called only after `done`."""
        if self.is_blocked(source, target) or self.is_blocked(target, source):
            self.scheduler.after(CONNECT_TIMEOUT_US, lambda: done(None))
            return

        def arrive() -> None:
            accept = self._accept.get(target)
            if accept is None:
                self.scheduler.after(self.delay_us(), lambda: done(None))
                return
            is_told = False

            def made() -> None:
                nonlocal is_told
                is_told = True
                done(connection)

            def ended() -> None:
                if is_told:
                    lost()
                else:
                    done(None)

            connection = SimConnection(self, source, target, ended)
            self._connections[connection] = None
            accept(connection)
            connection.send_back(made)

        self.scheduler.after(self.delay_us(), arrive)

    # Faults

    def is_blocked(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._blocked

    def block(self, sender: str, receiver: str) -> Call:
        """Block new messages in this direction; return a callback that frees it. Messages in transit still arrive.

        The direction stays blocked while another block holds it. After `heal` the callback does nothing.
        """
        self._blocks += 1
        number = self._blocks
        self._blocked.setdefault((sender, receiver), set()).add(number)

        def free() -> None:
            holders = self._blocked.get((sender, receiver), set())
            holders.discard(number)
            if not holders:
                self._blocked.pop((sender, receiver), None)
                for connection in list(self._connections):
                    connection.unblocked()

        return free

    def heal(self) -> None:
        """Free all directions."""
        self._blocked.clear()
        for connection in list(self._connections):
            connection.unblocked()

    def between(self, one: str, other: str) -> list[SimConnection]:
        """Return the connections between two machines."""
        ends = {one, other}
        return [connection for connection in self._connections if {connection.source, connection.target} == ends]

    def of(self, name: str) -> list[SimConnection]:
        """Return the connections of one machine."""
        return [connection for connection in self._connections if name in (connection.source, connection.target)]

    def die(self, name: str) -> None:
        """Close all connections of a machine whose power or process is gone."""
        for connection in self.of(name):
            connection.close(by_source=connection.source == name)

    def wait_for(self, connection: SimConnection) -> None:
        """Break a connection with a blocked direction after a while, unless the direction is free by then."""

        def give_up() -> None:
            there = self.is_blocked(connection.source, connection.target)
            if there or self.is_blocked(connection.target, connection.source):
                connection.cut()

        self.scheduler.after(self.silence_us(), give_up)

    def closed(self, connection: SimConnection) -> None:
        self._connections.pop(connection, None)
