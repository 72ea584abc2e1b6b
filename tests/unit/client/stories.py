"""Stories of what a client knows of its cluster, and of one request on its way, in tests/scenarios/client.

Brokers are reached at `a`, `b`, `c`; of those that are equally good the first is asked; each pause takes three quarters
of its longest time. What the client wants to do next is shown after each command; a pause passes by itself.

| command                                              | does                                                     |
|------------------------------------------------------|----------------------------------------------------------|
| `servers a b …`                                      | a new client, which is given these                       |
| `hello a broker=N [cluster=C]`                       | the broker at `a` says who it is                         |
| `metadata a [brokers=1@a,2@b!] [leader=N@a] epoch=N` | what the broker at `a` says; `!`: not live               |
| `metadata a leader=alone epoch=N`                    | the same, of a broker that knows no replicas             |
| `heard leader=N@a epoch=N`                           | what the caller was told of the stream, perhaps long ago |
| `fetch`, `append`, `create` [time=S]                 | a request begins                                         |
| `unreachable`                                        | no connection to the broker that was to be asked         |
| `lost`, `lost unsent`                                | the connection breaks                                    |
| `says CODE [leader=N] [address=a] [epoch=N] …`       | the broker refuses                                       |
| `answers epoch=N`                                    | it answers: the request is done                          |
| `refresh fails`                                      | nobody says who leads                                    |
| `tick S`                                             | time passes                                              |
| `show`                                               | who leads; who can be asked                              |
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.client.errors import Unavailable, specific
from penstock.client.link.attempts import Ask, Attempts, GiveUp, Pause, Refresh
from penstock.client.link.cluster import ClusterView
from penstock.messages import BrokerInfo, HelloResponse, PartitionInfo, StreamInfo

KEY = PartitionKey(StreamId(7), PartitionId(0))
ALONE = "alone"


class Story:
    """One client, its view of the cluster, and the request that is on its way."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.commands: dict[str, Callable[..., list[str]]] = {
            name.removeprefix("on_"): getattr(self, name) for name in dir(self) if name.startswith("on_")
        }

    def tell(self, line: str) -> list[str]:
        name, *words = line.split()
        plain = [word for word in words if "=" not in word]
        return self.commands[name](*plain, **dict(word.split("=") for word in words if "=" in word))

    def on_servers(self, *servers: str) -> list[str]:
        self.view = ClusterView(servers, lambda: 0.5)
        self.attempts: Attempts | None = None
        self.asked = ""
        return []

    def on_hello(self, address: str, broker: str, cluster: str = "C") -> list[str]:
        number = BrokerId(int(broker))
        hello = HelloResponse(broker_id=number, broker_version="v", cluster_id=cluster, format_version=1)
        try:
            self.view.greeted(address, hello)
        except RemoteError as error:
            if self.attempts is None:
                return [str(error)]
            self.attempts.unreachable(address, error, self.now_s)
            return [str(error), *self._next()]
        return []

    def on_metadata(self, address: str, brokers: str = "", leader: str = "", epoch: str = "") -> list[str]:
        infos = []
        for text in filter(None, brokers.split(",")):
            number, _, at = text.partition("@")
            info = BrokerInfo(broker_id=BrokerId(int(number)), address=at.rstrip("!"), is_live=not at.endswith("!"))
            infos.append(info)
        self.view.learn_brokers(infos, self.now_s)
        if epoch:
            self.view.learn_stream(_stream(leader, epoch), address, self.now_s)
        return self._next() if self.attempts is not None else []

    def on_heard(self, leader: str, epoch: str) -> list[str]:
        self.view.learn_stream(_stream(leader, epoch), None, self.now_s)
        return []

    def on_fetch(self, **options: str) -> list[str]:
        return self._begin(KEY, "fetch", repeatable=True, **options)

    def on_append(self, **options: str) -> list[str]:
        return self._begin(KEY, "append", repeatable=False, **options)

    def on_create(self, **options: str) -> list[str]:
        return self._begin(None, "create_stream", repeatable=True, **options)

    def on_unreachable(self) -> list[str]:
        assert self.attempts is not None
        self.attempts.unreachable(self.asked, Unavailable("connection refused"), self.now_s)
        return self._next()

    def on_lost(self, unsent: str = "") -> list[str]:
        assert self.attempts is not None
        self.attempts.lost(self.asked, Unavailable("the connection broke"), self.now_s, sent=not unsent)
        return self._next()

    def on_says(self, code: str, **details: str) -> list[str]:
        assert self.attempts is not None
        numbers = {("leader_epoch" if key == "epoch" else key): _value(value) for key, value in details.items()}
        self.attempts.refused(self.asked, specific(RemoteError(code, "so it says", **numbers)), self.now_s)
        return self._next()

    def on_answers(self, epoch: str) -> list[str]:
        self.view.works(self.asked)
        self.view.learn_answer(KEY, self.asked, LeaderEpoch(int(epoch)), self.now_s)
        self.attempts = None
        return []

    def on_refresh(self, fails: str) -> list[str]:
        assert fails == "fails"
        return self._next()

    def on_tick(self, seconds: str) -> list[str]:
        self.now_s += float(seconds)
        return []

    def on_show(self) -> list[str]:
        leader = self.view.leader(KEY)
        known = "nothing is known of it"
        if leader is not None:
            known = f"broker {leader.broker_id} leads in epoch {leader.leader_epoch}"
        place = self.view.leader_address(KEY)
        asked = self.view.any_broker(self.now_s)
        return [f"{known}, at {place}", f"candidates {' '.join(self.view.candidates())}, first {asked}"]

    def _begin(self, key: PartitionKey | None, what: str, *, repeatable: bool, time: str = "10") -> list[str]:
        deadline_s = self.now_s + float(time)
        self.attempts = Attempts(
            self.view, key, what=what, repeatable=repeatable, deadline_s=deadline_s, chance=lambda: 0.5
        )
        return self._next()

    def _next(self) -> list[str]:
        seen: list[str] = []
        while self.attempts is not None:
            match self.attempts.next(self.now_s):
                case Ask(address):
                    self.asked = address
                    return [*seen, f"ask {address}"]
                case Refresh(avoid):
                    return [*seen, " ".join(["refresh", *(f"not={address}" for address in sorted(avoid))])]
                case Pause(seconds):
                    self.now_s += seconds
                    seen.append(f"pause {seconds * 1000:.0f} ms")
                case GiveUp(error):
                    self.attempts = None
                    seen.append(f"{type(error).__name__}: {error}")
        return seen


def _stream(leader: str, epoch: str) -> StreamInfo:
    number, _, address = leader.removeprefix(ALONE).partition("@")
    zero = Offset(0)
    partition = PartitionInfo(
        leader_id=BrokerId(int(number)) if number else None,
        leader=address,
        leader_epoch=LeaderEpoch(int(epoch)),
        replicas=(BrokerId(1), BrokerId(2)) if leader != ALONE else (),
        log_start=zero,
        committed_end=zero,
        log_end=zero,
    )
    return StreamInfo(stream_id=KEY.stream_id, config=StreamConfig(name="s", subject="s"), partitions=(partition,))


def _value(text: str) -> object:
    if text == "true":
        return True
    return int(text) if text.lstrip("-").isdigit() else text
