"""Run by an older version on a log that this version indexed: it truncates the log, and writes other messages."""

from __future__ import annotations

import sys

from penstock.batch import codec
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.hot.message_group import MessageGroup
from penstock.vfs.real import RealVfs

log = Log.open(LogFolder(RealVfs(sys.argv[1]), sys.argv[2], 7, 0), LogConfig(segment_bytes=4_000), now_us=0)
assert log.state.value == "writable", log.damage
print("\n".join(log.notices))
cut = log.truncate(40)
assert cut is not None
cut.run()
log.truncated(cut)
log.start_epoch(log.leader_epoch + 1)
for number in range(20):
    names = (b"later", b"later.%d" % number, b"later")
    group = MessageGroup.of(names, (b"." * 40,) * 3)
    place = {"base_offset": log.log_end, "timestamp_us": log.last_timestamp_us, "leader_epoch": log.leader_epoch}
    log.append(*codec.encode(group, 0, 3, **place))
log.close()
