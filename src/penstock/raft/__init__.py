"""Raft consensus for the metadata log: core, wire format and storage; no sockets, no clock.

Begin with `core`, which defines the roles and the rules. `follower` and `leader` handle entries, `storage` defines what
survives a power loss, and `tests/sim/raft` tests that the whole is safe.

| module       | contents                                                       |
|--------------|----------------------------------------------------------------|
| `core`       | `Raft`: roles, terms, votes; inputs in, a `Ready` out          |
| `leader`     | log replication, commit counting, leadership transfer          |
| `progress`   | the leader's state of one follower, and what it may send there |
| `reads`      | linearizable reads (ReadIndex)                                 |
| `follower`   | receiving entries and snapshots                                |
| `log`        | entries in memory: committed, applied, on the disk             |
| `quorum`     | majorities                                                     |
| `terms`      | election numbers (terms), which name their candidates          |
| `membership` | the cluster's voters and learners, and which changes are safe  |
| `messages`   | the messages between brokers                                   |
| `wire`       | their bytes, and the checks for contradictory messages         |
| `storage`    | the files on the disk: log, snapshot, sync mark, reserve       |
| `disk_state` | read-only access to them                                       |
| `records`    | the bytes of the log file                                      |
| `dump`       | the files as rows for `penstock dump`                          |
| `values`     | entries, snapshots, `Ready`, the settings                      |

The driver's loop, for one broker:

    storage = Storage.open(vfs, bootstrap)               # bootstrap: the first voters; None to join a cluster
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

If `task.run()` raises, call `storage.save_failed(task, error)`. After a NotWrittenError (a full disk)
`raft.retract(ready)` takes back the proposals in it, and the driver informs their callers; the rest comes again with
the next Ready, at the next tick. After any other error the broker takes no part until it is restarted. Writes that must
succeed on a full disk may use the reserve; for the rest: `storage.save(ready, may_use_reserve=False)`.

Two voters survive no loss, just as one: three is the smallest cluster that survives one. A voter that lost its disk has
forgotten its votes and acknowledgements: remove it, then add it again as a learner. Reads and messages may get lost;
the requester retries. The last snapshot stays in memory, for followers that need it.
"""

from penstock.raft.core import Raft
from penstock.raft.errors import ChangeRefusedError, NotLeaderError, NotWrittenError
from penstock.raft.messages import Message
from penstock.raft.storage import RaftStorage, SaveTask
from penstock.raft.values import (
    Entry,
    EntryKind,
    HardState,
    RaftConfig,
    RaftMembership,
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
    "Message",
    "NotLeaderError",
    "NotWrittenError",
    "Raft",
    "RaftConfig",
    "RaftMembership",
    "RaftStorage",
    "Read",
    "Ready",
    "SaveTask",
    "Snapshot",
    "StoredState",
    "decode_message",
    "encode_message",
]
