"""Stories of one partition of a small cluster, in tests/scenarios/replication.

| command                                                 | does                                                       |
|---------------------------------------------------------|------------------------------------------------------------|
| `cluster [brokers=3] [min_isr=2] [durability=auto]`     | new brokers, all in sync; `catch_up`: bytes per second     |
| `show`, `batches B`, `latest B`, `ack B end=N`          | all brokers; one log; what its leader may say              |
| `unreachable B`                                         | which leaders B cannot reach, for how long                 |
| `append B [records=1] [size=100]`                       | one batch from a publisher                                 |
| `flush B`, `retain B start=N`, `merge B end=N`          | its disk; its retention; its cleaner                       |
| `fetch B`                                               | one round with its leader                                  |
| `settle`, `tick by_ms=N`                                | all that is on its way arrives; and time passes            |
| `wait by_ms=N`                                          | time passes, and nothing arrives                           |
| `part A B`, `join A B`, `drop A B`, `late`              | connections (0: the metadata); what was dropped comes late |
| `metadata away` or `back`, `changes arrive` or `return` | the metadata leader; one message to it, or from it         |
| `deaf B`, `hears B`                                     | B hears of no change of the metadata                       |
| `stop B [power]`, `start B [clean]`                     | with `power`, what is not flushed is lost                  |
| `fence B`, `elect B [unclean]` or `[instead]`           | the metadata decides; `instead`: its leader leaves the ISR |
| `query B`                                               | a look-up at B, which asks for its lease                   |
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.base.config import Durability
from tests.unit.replication.model import Cluster
from tests.unit.replication.model_broker import METADATA, Broker


class Story:
    """One story, command by command."""

    def __init__(self) -> None:
        self._cluster()

    def tell(self, line: str) -> list[str]:
        """Do what `line` says; what a person would see."""
        word, *rest = line.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        plain = [part for part in rest if "=" not in part]
        return list(getattr(self, f"_{word}")(*plain, **options) or ())

    def _broker(self, number: str) -> Broker:
        return self.cluster.brokers[int(number)]

    # What is there

    def _cluster(
        self, *, brokers: str = "3", min_isr: str = "2", durability: str = "auto", catch_up: str = "1000000000"
    ) -> None:
        self.cluster = Cluster(
            int(brokers), min_isr=int(min_isr), durability=Durability(durability), catch_up_bytes_per_s=int(catch_up)
        )
        self.cluster.advance(1_000)  # they began one after the other
        assert len(self.cluster.metadata.now.partition.isr) == int(brokers)

    def _show(self) -> Iterator[str]:
        truth = self.cluster.metadata.now.partition
        yield f"isr={_tuple(truth.isr)} leader={truth.leader} epoch={truth.leader_epoch}"
        for number, broker in self.cluster.brokers.items():
            log = broker.log
            ends = f"flushed_end={log.flushed_end} committed_end={broker.committed_end}"
            yield f"{number}: {_role(broker)} log=[{log.log_start}, {log.log_end}) {ends}"

    def _batches(self, number: str) -> Iterator[str]:
        yield " ".join(f"[{b.base}, {b.end}) epoch={b.epoch}" for b in self._broker(number).log.batches) or "nothing"

    def _latest(self, number: str) -> Iterator[str]:
        leadership = self._broker(number).leadership
        assert leadership is not None
        yield str(leadership.committed_end) if leadership.knows_latest else "is not known yet"

    def _ack(self, number: str, *, end: str) -> Iterator[str]:
        leadership = self._broker(number).leadership
        assert leadership is not None
        standing = leadership.commit_status(int(end))
        yield f"replicas={standing.replicas} fsynced={standing.fsynced}"

    def _unreachable(self, number: str) -> Iterator[str]:
        for leader, fetcher in self._broker(number).fetchers.items():
            if fetcher.unreachable_since_us is not None:
                yield f"{leader}, for {(self.cluster.now_us - fetcher.unreachable_since_us) // 1_000} ms"

    # Logs

    def _append(self, number: str, *, records: str = "1", size: str = "100") -> Iterator[str]:
        if not self._broker(number).append(int(records), int(size)):
            yield "refused"
        self.cluster.pump()

    def _flush(self, number: str) -> None:
        self._broker(number).flush()
        self.cluster.pump()

    def _retain(self, number: str, *, start: str) -> None:
        self._broker(number).retain(int(start))
        self.cluster.pump()

    def _merge(self, number: str, *, end: str) -> None:
        self._broker(number).log.merge(int(end))

    # Messages and time

    def _fetch(self, number: str) -> None:
        """One round: what the follower asks, what it is answered, and its next question."""
        following = self._broker(number).following
        assert following is not None
        pair = int(number), int(following.leader)
        self.cluster.deliver(*pair)
        self.cluster.deliver(*reversed(pair))

    def _settle(self) -> None:
        self.cluster.settle()

    def _tick(self, *, by_ms: str) -> None:
        self.cluster.advance(int(by_ms))

    def _wait(self, *, by_ms: str) -> None:
        self.cluster.now_us += int(by_ms) * 1_000
        self.cluster.tick()

    def _part(self, one: str, other: str) -> None:
        self.cluster.part(int(one), int(other))

    def _join(self, one: str, other: str) -> None:
        self.cluster.apart.discard(frozenset((int(one), int(other))))

    def _drop(self, one: str, other: str) -> None:
        self.cluster.disconnect(int(one), int(other), keep_ghosts=True)

    def _late(self) -> None:
        """All that was dropped comes now."""
        ghosts, self.cluster.ghosts = self.cluster.ghosts, []
        for sender, receiver, message in ghosts:
            self.cluster.handle(sender, receiver, message)

    # Metadata and brokers

    def _deaf(self, number: str) -> None:
        self._broker(number).is_deaf = True

    def _hears(self, number: str) -> None:
        self._broker(number).is_deaf = False

    def _metadata(self, how: str) -> None:
        for number in self.cluster.brokers:
            if how == "away":
                self.cluster.part(number, METADATA)
            else:
                self.cluster.apart.discard(frozenset((number, METADATA)))

    def _changes(self, which: str, number: str) -> None:
        """What a leader asks the metadata to change arrives, or its answer does."""
        pair = (int(number), METADATA) if which == "arrive" else (METADATA, int(number))
        assert self.cluster.deliver(*pair)

    def _stop(self, number: str, power: str = "") -> None:
        self.cluster.stop(int(number), lose_power=power == "power")

    def _start(self, number: str, clean: str = "") -> None:
        self._broker(number).start(clean=clean == "clean")
        self.cluster.pump()

    def _fence(self, number: str) -> None:
        self.cluster.metadata.fence(int(number))

    def _elect(self, number: str, how: str = "") -> None:
        self.cluster.is_unclean |= how == "unclean"
        self.cluster.metadata.elect(int(number), unclean=how == "unclean", instead=how == "instead")

    def _query(self, number: str) -> Iterator[str]:
        broker = self._broker(number)
        yield f"answers with {broker.committed_end}" if broker.query() else "waits"


def _tuple(numbers: tuple[int, ...]) -> str:
    return "(" + ",".join(map(str, numbers)) + ")"


def _role(broker: Broker) -> str:
    if not broker.is_up:
        return "is down"
    if broker.leadership is not None:
        return f"leads epoch {broker.leadership.leader_epoch}"
    if broker.following is not None:
        following = broker.following
        return f"follows {following.leader} in epoch {following.leader_epoch}, {following.state}"
    return "waits for a leader"
