"""Stories of Raft without a network, in tests/scenarios/raft: what each broker makes of its input, step by step.

| command                            | does                                                                           |
|------------------------------------|--------------------------------------------------------------------------------|
| `brokers 1 2 3 [/ 4] [field=N …]`  | starts voters (and, behind `/`, learners), with these settings                 |
| `join ID`                          | starts a broker that knows no cluster                                          |
| `log ID INDEX:TERM … [term=T]`     | starts that broker anew with this log                                          |
| `campaign ID`, `tick ID [N]`       | an election; time passes                                                       |
| `propose ID TEXT …`                | one proposal each                                                              |
| `change ID 1 2 / 3`                | another membership                                                             |
| `read ID CONTEXT`, `transfer ID TO`| a read; the leader hands over                                                  |
| `compact ID INDEX`                 | a snapshot                                                                     |
| `ready ID`                         | what that broker has to do, and it does it; its messages are on their way      |
| `disk ID full`                     | that broker's next Ready finds no room, and is taken back                      |
| `deliver ID [from=ID] [order=back]`| it gets what is on its way; `order=back`: the last first, then all again       |
| `drop ID [from=ID]`                | that is lost instead                                                           |
| `settle [without=ID,ID]`           | until nothing happens any more; to and from those nothing comes through        |
| `show [ID]`                        | role, term, log                                                                |

Term `6.3` is round 6 of broker 3; a number alone is a term from before terms named their candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base.errors import RemoteError
from penstock.raft import (
    Entry,
    EntryKind,
    HardState,
    Message,
    Raft,
    RaftConfig,
    RaftMembership,
    Ready,
    Snapshot,
    StoredState,
    decode_message,
    encode_message,
)
from penstock.raft.membership import decode_membership
from penstock.raft.messages import AppendEntriesRequest, SnapshotChunk
from penstock.raft.terms import names, next_term, round_of
from penstock.raft.values import NO_SNAPSHOT


class NoChance:
    """Everybody has the shortest patience."""

    def randrange(self, stop: int, /) -> int:
        """Always 0."""
        assert stop > 0
        return 0


def term_of(text: str) -> int:
    """`6.3`, or a number."""
    round_, dot, candidate = text.partition(".")
    return next_term(int(round_) - 1, int(candidate), 0) if dot else int(round_)


def shown(term: int) -> str:
    """The same back."""
    if term < 2**32:
        return str(term)
    return f"{round_of(term)}.{next(one for one in range(10) if names(term, one))}"


def membership_of(words: Iterable[str]) -> RaftMembership:
    """`1 2 / 3` is two voters and a learner."""
    voters, _, learners = " ".join(words).partition("/")
    return RaftMembership(tuple(map(int, voters.split())), tuple(map(int, learners.split())))


def entry_text(entry: Entry) -> str:
    """`7:2 text`: index, term, what."""
    if entry.kind is EntryKind.MEMBERSHIP:
        return f"{entry.index}:{shown(entry.term)} {members_text(decode_membership(entry.data))}"
    return f"{entry.index}:{shown(entry.term)} {entry.data.decode() or '(leads)'}"


def message_text(message: Message) -> str:
    """A message as a person would say it."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    sender, to, term = (fields.pop(name) for name in ("sender", "to", "term"))
    if isinstance(message, AppendEntriesRequest):
        fields["entries"] = "[" + ", ".join(map(entry_text, message.entries)) + "]"
    if isinstance(message, SnapshotChunk):
        fields["membership"] = members_text(message.membership)
        del fields["crc"]
    fields |= {name: shown(value) for name, value in fields.items() if name.endswith("_term")}
    said = " ".join(f"{name}={value}" for name, value in fields.items() if value is not False and value != b"")
    return f"{sender}->{to} {type(message).__name__} term={shown(term)} {said}".rstrip()


def members_text(membership: RaftMembership) -> str:
    """`(1 2 / 3)`."""
    learners = f" / {' '.join(map(str, membership.learners))}" if membership.learners else ""
    return f"({' '.join(map(str, membership.voters))}{learners})"


class Story:
    """The brokers, and what is on its way between them."""

    def __init__(self) -> None:
        self.brokers: dict[int, Raft] = {}
        self.way: list[Message] = []
        self.settings: dict[str, int] = {}
        self.begin = NO_SNAPSHOT
        self.full: set[int] = set()
        self.applied: dict[int, list[str]] = {}

    def tell(self, line: str) -> list[str]:
        """Do one command; what is to be seen of it."""
        command, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        try:
            return getattr(self, f"_{command}")(words, options) or []
        except RemoteError as error:
            return [f"refused: {error}"]

    def _start(self, broker_id: int, state: StoredState) -> None:
        self.applied[broker_id] = []
        self.brokers[broker_id] = Raft(RaftConfig(broker_id, **self.settings), NoChance(), state)

    def _brokers(self, words: list[str], options: dict[str, str]) -> None:
        self.brokers, self.way = {}, []
        self.settings = {name: int(value) for name, value in options.items()}
        membership = membership_of(words)
        self.begin = Snapshot(0, 0, membership, b"")
        for broker_id in membership.voters + membership.learners:
            self._start(broker_id, StoredState(HardState(), self.begin))

    def _join(self, words: list[str], options: dict[str, str]) -> None:
        self._start(int(words[0]), StoredState(HardState(), NO_SNAPSHOT))

    def _log(self, words: list[str], options: dict[str, str]) -> None:
        places = [(int(index), term) for index, _, term in (word.partition(":") for word in words[1:])]
        entries = tuple(Entry(term_of(term), index, EntryKind.COMMAND, f"old{term}".encode()) for index, term in places)
        term = term_of(options.get("term", places[-1][1] if places else "0"))
        self._start(int(words[0]), StoredState(HardState(term), self.begin, entries))

    def _campaign(self, words: list[str], options: dict[str, str]) -> None:
        self.brokers[int(words[0])].campaign()

    def _tick(self, words: list[str], options: dict[str, str]) -> list[str]:
        seen = []
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self.brokers[int(words[0])].tick()
            if self.brokers[int(words[0])].is_leader:
                seen += self._ready(words[:1], {})
        return seen

    def _propose(self, words: list[str], options: dict[str, str]) -> list[str]:
        places = [self.brokers[int(words[0])].propose(word.encode()) for word in words[1:]]
        return ["proposed " + " ".join(f"{index}:{shown(term)}" for index, term in places)]

    def _change(self, words: list[str], options: dict[str, str]) -> list[str]:
        index, term = self.brokers[int(words[0])].propose_change(membership_of(words[1:]))
        return [f"proposed {index}:{shown(term)}"]

    def _read(self, words: list[str], options: dict[str, str]) -> None:
        self.brokers[int(words[0])].read_index(words[1].encode())

    def _transfer(self, words: list[str], options: dict[str, str]) -> None:
        self.brokers[int(words[0])].transfer(int(words[1]))

    def _compact(self, words: list[str], options: dict[str, str]) -> list[str]:
        snapshot = self.brokers[int(words[0])].compact(int(words[1]), b"x" * 10)
        return [f"snapshot {snapshot.index}:{shown(snapshot.term)} {members_text(snapshot.membership)}"]

    def _disk(self, words: list[str], options: dict[str, str]) -> None:
        self.full.add(int(words[0]))

    def _ready(self, words: list[str], options: dict[str, str]) -> list[str]:
        broker_id = int(words[0])
        raft = self.brokers[broker_id]
        seen: list[str] = []
        while raft.has_ready():
            ready = raft.ready()
            if ready.must_sync and broker_id in self.full:
                self.full.remove(broker_id)
                return [*seen, f"{broker_id} takes back {', '.join(map(entry_text, raft.retract(ready))) or 'nothing'}"]
            seen += self._do(broker_id, ready)
            raft.advance(ready)
        return seen

    def _do(self, broker_id: int, ready: Ready) -> list[str]:
        seen = []
        if ready.snapshot is not None:
            seen.append(f"stores snapshot {ready.snapshot.index}:{shown(ready.snapshot.term)}")
            self.applied[broker_id] = [f"snapshot {ready.snapshot.index}"]
        if ready.entries:
            seen.append(f"stores {', '.join(map(entry_text, ready.entries))}")
        if ready.hard_state is not None and ready.must_sync:
            seen.append(f"stores term {shown(ready.hard_state.term)} vote {ready.hard_state.vote}")
        seen += [f"sends {message_text(message)}" for message in ready.messages]
        if ready.committed:
            seen.append(f"applies {', '.join(map(entry_text, ready.committed))}")
            self.applied[broker_id] += map(entry_text, ready.committed)
        seen += [f"may read {read.context.decode()} at {read.index}" for read in ready.reads]
        self.way += ready.messages
        return [f"{broker_id} {text}" for text in seen]

    def _taken(self, words: list[str], options: dict[str, str]) -> list[Message]:
        to, sender = int(words[0]), int(options.get("from", 0))
        taken = [message for message in self.way if message.to == to and sender in (0, message.sender)]
        self.way = [message for message in self.way if message not in taken]
        return taken

    def _deliver(self, words: list[str], options: dict[str, str]) -> None:
        taken = self._taken(words, options)
        for message in [*reversed(taken), *taken] if "order" in options else taken:
            self.brokers[message.to].step(decode_message(encode_message(message)))

    def _drop(self, words: list[str], options: dict[str, str]) -> None:
        self._taken(words, options)

    def _settle(self, words: list[str], options: dict[str, str]) -> None:
        away = {int(word) for word in options.get("without", "").split(",") if word}
        for _ in range(1_000):
            for broker_id in sorted(self.brokers):
                self._ready([str(broker_id)], {})
            if not self.way:
                return
            way, self.way = self.way, []
            for message in way:
                if message.to in self.brokers and not {message.sender, message.to} & away:
                    self.brokers[message.to].step(decode_message(encode_message(message)))
        raise AssertionError("they never stop talking")

    def _show(self, words: list[str], options: dict[str, str]) -> list[str]:
        ids = [int(word) for word in words] or sorted(self.brokers)
        return [self._shown(broker_id) for broker_id in ids]

    def _shown(self, broker_id: int) -> str:
        raft = self.brokers[broker_id]
        log = raft.log
        entries = " ".join(
            f"{entry.index}:{shown(entry.term)}" for entry in log.between(log.base_index, log.last_index)
        )
        leader = "" if raft.is_leader else f" of {raft.leader}"
        dropped = f" dropped={raft.dropped}" if raft.dropped else ""
        dropped += f" contradicted at {raft.contradiction.index}" if raft.contradiction else ""
        return (
            f"{broker_id}: {type(raft.role).__name__}{leader} term={shown(raft.term)} commit={raft.commit}"
            f" members={members_text(raft.membership)} log=[{entries}]{dropped}"
        )
