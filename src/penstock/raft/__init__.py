"""Raft: the metadata log that a majority of brokers agrees on. Core, wire format and storage; no sockets, no clock.

Begin with `core`: its docstring tells the roles and the rules. Then `follower` and `leader` are what the two do with
entries, `storage` is what a power loss leaves of it, and `tests/sim/raft` is where it is shown that all that is enough.

| module       | what it knows                                                        |
|--------------|----------------------------------------------------------------------|
| `core`       | `Raft`: roles, terms, votes; inputs in, a `Ready` out                |
| `leader`     | sending the log out, counting who has it, handing over               |
| `progress`   | what a leader knows of one follower, and what it may send there      |
| `reads`      | reads that wait until the leader knows that it still leads           |
| `follower`   | taking entries and snapshots                                         |
| `log`        | entries in memory: committed, applied, on the disk                   |
| `quorum`     | majorities                                                           |
| `terms`      | the numbers of elections, which name their candidates                |
| `membership` | who is in the cluster, and which change of it is safe                |
| `messages`   | what brokers say to each other                                       |
| `wire`       | the same as bytes, and what no message can be                        |
| `storage`    | what is on the disk: log, snapshot, mark, reserve                    |
| `stored`     | the same, only read                                                  |
| `records`    | the bytes of the log's file                                          |
| `dump`       | the files as rows, for people                                        |
| `values`     | entries, snapshots, `Ready`, the settings                            |

The driver's loop, for one broker:

    storage = Storage.open(vfs, bootstrap)               # bootstrap: who the first voters are; None to join a cluster
    raft = Raft(RaftConfig(id=broker_id), Random(), storage.state)
    # each tick: raft.tick(); each message: raft.step(decode_message(data)); each command: raft.propose(data)
    while raft.has_ready():
        ready = raft.ready()
        task = storage.save(ready)                       # 1. persist; None if nothing has to be
        if task is not None:
            task.run()                                   #    in a disk thread; inputs wait in a queue meanwhile
            storage.saved(task)                          #    (if it raised, see below)
        for message in ready.messages:                   # 2. only then send
            send(message.to, encode_message(message))
        if ready.snapshot is not None:                   # 3. apply
            application.restore(ready.snapshot.data)
        for entry in ready.committed:
            application.apply(entry)                     #    a proposal is done if its index and its term come out
        raft.advance(ready)                              # 4. go on
    # a read is served once raft.applied has reached the index that came for it
    # every few MiB: storage.save_snapshot(raft.compact(raft.applied, application.image()))

If `task.run()` raises, `storage.save_failed(task, error)` hears it. After a NotWrittenError (a full disk)
`raft.retract(ready)` takes back the proposals in it, whose callers are told so; the rest comes again with the next
Ready, at the next tick. After any other error the broker takes part no more until it is restarted. What must go through
on a full disk may use the reserve; for the rest: `storage.save(ready, may_use_reserve=False)`.

Two voters survive no loss, just as one: three is the smallest cluster that survives one. A voter whose disk is lost has
forgotten what it promised: it comes back only as a learner, after it was removed. Reads and messages may get lost; who
asked asks again. The last snapshot stays in memory, for those who need it.
"""

from penstock.raft.core import Raft
from penstock.raft.errors import ChangeRefusedError, NotLeaderError, NotWrittenError
from penstock.raft.messages import Message
from penstock.raft.storage import SaveTask, Storage
from penstock.raft.values import (
    Entry,
    EntryKind,
    HardState,
    Membership,
    RaftConfig,
    Read,
    Ready,
    Snapshot,
    StoredState,
)
from penstock.raft.wire import decode_message, encode_message

__all__ = [
    "ChangeRefusedError",
    "Entry",
    "EntryKind",
    "HardState",
    "Membership",
    "Message",
    "NotLeaderError",
    "NotWrittenError",
    "Raft",
    "RaftConfig",
    "Read",
    "Ready",
    "SaveTask",
    "Snapshot",
    "Storage",
    "StoredState",
    "decode_message",
    "encode_message",
]
