"""Mutants that the simulator must find: each patches a line or two of the source; see `planting`.

This module imports nothing of Penstock, so that a mutant is installed before the modules that it patches are imported.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Mutant, Patch, plant

_RULES = "penstock.replication.rules"
_LEADER = "penstock.replication.leader"
_SESSIONS = "penstock.replication.sessions"
_LEADERSHIPS = "penstock.metadata.effects.leaderships"
_ELECTIONS = "penstock.metadata.elections"
_PARTITION = "penstock.node.partition.partition"
_FRESHNESS = "penstock.replication.freshness"
_PUBLISHING = "penstock.node.api.staged_publishing"
_STAGED_ROWS = "penstock.node.replicas.staged_retention"
_COMPACTION = "penstock.commitlog.cleaner.compaction"
_MEMBERSHIP = "penstock.groups.membership"
_MOVING = "penstock.node.replicas.key_migration"
_ACCESS = "penstock.node.security.access"
_APPENDING = "penstock.node.api.partition_append"
_STORING = "penstock.node.api.append_api"
_REGISTRY = "penstock.node.api.schema_registry"
_VALUES = "penstock.node.api.schema_checks"
_COMPANIONS = "penstock.node.replicas.companions"
_CONSUMER_LOGS = "penstock.node.consumers.consumer_logs"
_SUBJECTS = "penstock.commitlog.subject_queries"
_DECISIONS = "penstock.node.api.row_decisions"
_ROW_LIMIT = "penstock.node.partition.row_limit"
_FEATURES = "penstock.metadata.feature_versions"


MUTANTS = (
    Mutant(
        "an event is not told what ended earlier in its turn",
        "penstock.node.node",
        "        if self._events.is_pressing:\n",
        "        if False:\n",
    ),
    Mutant(
        "acks before the sync",
        _LEADER,
        "end = self.flushed_end if self.waits_for_own_disk else self.log_end",
        "end = self.log_end",
    ),
    Mutant(
        "says synced what is not",
        _LEADER,
        "count, fsynced = 1, self.flushed_end >= end",
        "count, fsynced = 1, True",
    ),
    Mutant(
        "a failed sync counts as one",
        "penstock.node.maintenance.log_maintenance",
        "            if error is None:\n                partition.log.flushed(flush)",
        "            if True:\n                partition.log.flushed(flush)",
    ),
    Mutant(
        "leads with the epoch of the last start",
        _ELECTIONS,
        "epoch = LeaderEpoch(partition.leader_epoch + 1)",
        "epoch = LeaderEpoch(max(1, partition.leader_epoch))",
    ),
    Mutant(
        "acks what was pending when the disk failed",
        _PARTITION,
        "            self._refuse(pending.waiters, error, step)",
        "            self._ack(pending.waiters, pending.base_offset, 0, step, CommitStatus(1, fsynced=True), 0)",
    ),
    Mutant(
        "a limit shows a message too many",
        _ROW_LIMIT,
        "        left = self.rows(start, end, hidden) - self.rows_max\n",
        "        left = self.rows(start, end, hidden) - self.rows_max - 1\n",
    ),
    Mutant(
        "denies what may be stored",
        _PARTITION,
        "        error = acks.outcome_unknown(reason)",
        "        error = acks.store_failed(reason)",
    ),
    Mutant(
        "readers see what is not committed",
        "penstock.node.api.fetch_api",
        "end, size_bytes = partition.visible_end, partition.visible_bytes",
        "end, size_bytes = partition.log.log_end, partition.visible_bytes",
    ),
    Mutant(
        "a duplicate is acked before its first is committed",
        _PARTITION,
        "        if (those := again(group, found, 0, leadership.committed_end)) is not None:",
        "        if (those := again(group, found, 0, written)) is not None:",
    ),
    Mutant(
        "ids are not forgotten when the disk refuses the message",
        _PARTITION,
        "            self.dedup.cut(self.log.log_end)",
        "            pass",
    ),
    Mutant(
        "ids are not read from the log",
        "penstock.node.partition.dedup",
        "        if error is None:\n            dedup.known(work.ids)",
        "        if error is None:\n            dedup.known(MessageIds(dedup.ids_max))",
    ),
    Mutant(
        "producers are not read from the log",
        "penstock.node.api.producers",
        "                producers.known(work.found)",
        "                producers.known(ProducerCollector(0))",
    ),
    Mutant(
        "runs are not read from the log",
        _PUBLISHING,
        "                runs.known(work.found)",
        "                runs.known(RunCollector(0))",
    ),
    Mutant(
        "a piece that is there is stored again",
        "penstock.ingest.published",
        "        if last.batch_id > piece.batch_id or piece.number < last.pieces or last.is_complete:",
        "        if last.batch_id > piece.batch_id:",
    ),
    Mutant(
        "a run does not name its plan",
        _PUBLISHING,
        "piece.query_id, piece.plan)",
        "piece.query_id, 0)",
    ),
    Mutant(
        "staged rows go that nobody has published",
        _STAGED_ROWS,
        "        return next(iter(left), None)",
        "        return None",
    ),
    Mutant(
        "staged rows go once their batch is begun",
        _STAGED_ROWS,
        "header.producer_sequence == batch_id and header.flags & ENDS_RUN",
        "header.producer_sequence == batch_id",
    ),
    Mutant(
        "merged batches do not say that they have ids",
        "penstock.batch.merging",
        "        flags=whole.flags,",
        "        flags=0,",
    ),
    Mutant(
        "messages without a key go",
        "penstock.commitlog.cleaner.latest_by_key",
        "pc.or_(pc.is_in(offsets, value_set=last), keys.is_null())",
        "pc.is_in(offsets, value_set=last)",
    ),
    Mutant(
        "a tombstone goes in the pass that judges it first",
        _COMPACTION,
        '        keep = self._latest.are_last(keys, rows.column("offset"))',
        '        keep = self._latest.are_last(keys, rows.column("offset"))\n'
        "        keep = pc.and_(keep, pc.invert(_tombstones(rows, keys)))",
    ),
    Mutant(
        "a tombstone stays for a thousandth of its time",
        "penstock.commitlog.config",
        "tombstone_retention_us=config.tombstone_retention_ms * 1000,",
        "tombstone_retention_us=config.tombstone_retention_ms,",
    ),
    Mutant(
        "suspended deletion deletes",
        "penstock.commitlog.config",
        "return found.untouched() if config.is_deletion_suspended else found",
        "return found",
    ),
    Mutant(
        "a tombstone goes while what it ended still covers offsets",
        _COMPACTION,
        "pc.invert(pc.and_(may_go, self._are_free(keys)))",
        "pc.invert(may_go)",
    ),
)

CLUSTER_MUTANTS = (
    Mutant(
        "a deposed leader answers look-ups",
        "penstock.node.api.lookup_api",
        "        self._leases.confirm(call, partition, self._going_on(call, confirmed))",
        "        confirmed(call)",
    ),
    Mutant(
        "promises to leaders are not kept",
        "penstock.node.replicas.leader_leases",
        "        return self._given.binding(others, self._context.image.brokers, self._context.now.elapsed_us)",
        "        return {}",
    ),
    Mutant(
        "a leader counts on promises for longer than they last",
        "penstock.replication.lease",
        "            lease_us = min(lease_us, _LEASE_US)",
        "            lease_us = 20 * lease_us",
    ),
    Mutant(
        "members commit what they have lost",
        "penstock.node.api.group_members",
        "        group.membership.check_commit(request.member_id, request.generation, parts)",
        "        pass",
    ),
    Mutant(
        "a partition is granted before it is given back",
        _MEMBERSHIP,
        "if part in target or part in member.may_have",
        "if part in target",
    ),
    Mutant(
        "a session is half as long as it was said",
        _MEMBERSHIP,
        "        member.deadline_us = now_us + beat.session_ms * 1_000",
        "        member.deadline_us = now_us + beat.session_ms * 500",
    ),
    Mutant(
        "the first offset of a group counts after a failover",
        "penstock.node.api.internal_log",
        "                    last[key] = value, timestamp_us",
        "                    last.setdefault(key, (value, timestamp_us))",
    ),
    Mutant(
        "a new coordinator takes for given back what it has not heard of",
        _MEMBERSHIP,
        "        self.may_have = set(granted)",
        "        self.may_have = set[StreamPartition]()",
    ),
    Mutant(
        "a generation is told before it is committed",
        "penstock.node.api.group_members",
        "        membership.writes(generation)",
        "        membership.wrote(generation)",
    ),
    Mutant(
        "compaction looks beyond committed_end",
        "penstock.commitlog.log",
        "return min(self.flushed_end, self.committed_end)",
        "return self.flushed_end",
    ),
    Mutant(
        "batches of two leaderships are merged",
        "penstock.batch.merging",
        "            leader_epoch,\n            OF_ROWS,",
        "            -1,\n            OF_ROWS,",
    ),
    Mutant(
        "answers a truncation that nobody else knows of",
        "penstock.node.replicas.truncations",
        "elif asked.partition.truncated_end >= asked.before:",
        "elif asked.partition.truncated_end >= 0 and not self._answer(asked, None):",
    ),
    Mutant(
        "a batch that comes again is answered before its first is committed",
        _PARTITION,
        "        if place.end_offset <= self.committed_end:",
        "        if place.end_offset <= self.log.log_end:",
    ),
    Mutant(
        "producers outlive the leadership",
        _PARTITION,
        "        self.dedup = self.lasts = self.producers = self.published = None\n        self.newcomers =",
        "        self.dedup = self.lasts = self.published = None\n        self.newcomers =",
    ),
    Mutant(
        "ids outlive the leadership",
        _PARTITION,
        "        self.dedup = self.lasts = self.producers = self.published = None\n        self.newcomers =",
        "        self.lasts = self.producers = self.published = None\n        self.newcomers =",
    ),
    Mutant(
        "a follower truncates to what is committed instead of by lineage",
        _RULES,
        "    return min(leader.end_offset, own_end)",
        "    return min(own_end, log.committed_end)",
    ),
    Mutant(
        "a diverging fetch counts for committed_end",
        _SESSIONS,
        "        if position.diverging is not None:\n            session.refused[key] = None",
        "        if position.diverging is not None:\n            leadership.fetched("
        "session.broker_id, session.incarnation, named.log_end, named.flushed_end, now_us)\n"
        "            session.refused[key] = None",
    ),
    Mutant(
        "committed_end counts replicas that are not in the ISR",
        _LEADER,
        "        if end <= self.committed_end:\n            return False\n        self.committed_end = end",
        "        ends = sorted((self.log_end, *(self._reached(one) or 0 for one in self._followers)), reverse=True)\n"
        "        end = ends[len(self.isr) - 1]\n"
        "        if end <= self.committed_end:\n            return False\n        self.committed_end = end",
    ),
    Mutant(
        "committed_end counts nobody of the ISR but the leader",
        _RULES,
        "    return members if all(members.issuperset(one) for one in proposed) else members.union(*proposed)",
        "    return frozenset()",
    ),
    Mutant(
        "committed_end counts the smallest of the ISRs that may be",
        _RULES,
        "    return members if all(members.issuperset(one) for one in proposed) else members.union(*proposed)",
        "    return min((members, *map(frozenset, proposed)), key=len)",
    ),
    Mutant(
        "committed_end moves below min_isr",
        _RULES,
        "    return isr_size >= min_isr",
        "    return True",
    ),
    Mutant(
        "who joins the ISR need not have all",
        _RULES,
        "    return reached is not None and reached >= max(committed_end, epoch_start)",
        "    return reached is not None",
    ),
    Mutant(
        "what a follower said in a run that is over counts",
        _LEADER,
        "                follower.begin(incarnation, now_us)",
        "                follower.incarnation, follower.joins_at = incarnation, 0",
    ),
    Mutant(
        "a follower shows what it has",
        _RULES,
        "    return min(leader_committed_end, log_end)",
        "    return log_end",
    ),
    Mutant(
        "a leader that may be deposed refuses what its successor stores",
        _PARTITION,
        "        if self.is_replicated:\n            self.budget.refusals.add(self, answers)",
        "        if not answers:\n            self.budget.refusals.add(self, answers)",
    ),
    Mutant(
        "what was pending is acked in a later epoch",
        _PARTITION,
        "        self.abandon(RemoteError(ErrorCode.FENCED_EPOCH, text), step)",
        "        assert text",
    ),
    Mutant(
        "a stop stays clean though a checkpoint is lost",
        "penstock.node.control.cluster",
        "if stopped is not None and (path := doubtful_log(self._vfs)):",
        "if (path := doubtful_log(self._vfs)) and stopped is None:",
    ),
    Mutant(
        "an unclean start stays in the ISR",
        _ELECTIONS,
        "    partition = _left(partition, broker_id)\n    is_last",
        "    is_last",
    ),
    Mutant(
        "the last member leads with an empty disk",
        _ELECTIONS,
        "        awaited = None if has_disk else own",
        "        awaited = None",
    ),
    Mutant(
        "the last one to return leads",
        _ELECTIONS,
        "    longest = max(ends[one].length for one in among)",
        "    among, longest = may_lead, ends[max(may_lead, key=lambda one: ends[one].incarnation)].length",
    ),
    Mutant(
        "a leader of an earlier epoch goes on",
        "penstock.node.replicas.roles",
        "            self.event_log.ended(_name(partition))\n            self._resign(partition)\n",
        "            return\n",
    ),
    Mutant(
        "a run that is over joins the ISR",
        _LEADERSHIPS,
        "        image.live_run(member.broker_id, member.incarnation)",
        "        assert member.incarnation",
    ),
    Mutant(
        "changes of ISRs are not compared and set",
        _LEADERSHIPS,
        "    if change.version != partition.version:",
        "    if change.version > partition.version:",
    ),
    Mutant(
        "a broker that leads one partition keeps all keys",
        "penstock.node.subscriptions.key_routing",
        "    for number, partition in parting.takers.items():",
        "    if len(parting.takers) == 1:\n        shares = [group] * len(shares)\n"
        "    for number, partition in parting.takers.items():",
    ),
    Mutant(
        "a partition that was added takes keys before the older ones have given them up",
        _MOVING,
        "            keys.is_open = partition.key.partition < stream.counts[0]",
        "            keys.is_open = True",
    ),
    Mutant(
        "who joins a shared subscription does not wait for its barrier",
        "penstock.node.subscriptions.subscriptions",
        "takes=not (self._is_up and channel.asked)",
        "takes=True",
    ),
    Mutant(
        "a follower does not tell its synced end when durability becomes stricter",
        "penstock.node.replicas.follower_replication",
        "            if following.reports_flushes and not reported:\n",
        "            if False:\n",
    ),
    Mutant(
        "a leader that is alone in sync does not wait for its disk",
        _RULES,
        "return durability is Durability.FSYNC or (durability is Durability.AUTO and smallest_isr == 1)",
        "return durability is Durability.FSYNC",
    ),
)
"""Mutants that need more than one broker.

Left out are faults that another rule makes harmless:

- A leader accepts a fetch of an earlier run. Its session ended with that run, so the fetch could only be the first of a
  new session; and the metadata leader refuses a join by it, because the broker has another incarnation.
- Raft commits an entry of an earlier term by counting replicas. A new leader sends such entries and its own first entry
  in one message, unless they exceed a mebibyte, so a follower has both or none. `tests/sim/raft` uses small messages
  and finds it.
- Raft votes twice in a term after a restart. A term names its candidate, so both votes are for the same one and count
  once. `tests/sim/raft` has a vote that is not on disk, and terms that name no candidate.
- A coordinator takes a member's last report to its predecessor for everything that the member owns. A member sends one
  heartbeat at a time and drops late answers; `tests/unit/groups/test_membership.py` has a member that does not.
- The metadata leader accepts an ISR change of an earlier leader epoch. The change names the partition version that it
  is based on, and each new leader raises the version.

Left out, too, are faults that seeds show too rarely. A leader that counts answers before it knows what the followers
know needs a disk that hangs just when the leader is deposed: `tests/unit/node/test_not_heard.py` finds it. A compaction
pass that drops tombstones before the names of the segments that replace their messages are synced: a log with appends
syncs its names often anyway; `tests/unit/commitlog/cleaner/test_compaction.py` finds it. Offsets that a new leader
returns before they are committed need a second failover within milliseconds: `tests/unit/node/api/test_offsets.py`
finds them.
"""

MUTANTS_OF_RIGHTS = (
    Mutant(
        "a broker goes by the rules that it found first",
        _ACCESS,
        "        if judge is None or not judge.goes_by(own, of_all):",
        "        if judge is None:",
    ),
    Mutant(
        "a connection outlives the secret that it was made with",
        _ACCESS,
        "            if credential is None or credential.mark != who.mark:",
        "            if credential is None:",
    ),
    Mutant(
        "a broker that is cut off goes by what it knows",
        _ACCESS,
        "        if not (access.is_current or (self.may_monitor",
        "        if not (True or (self.may_monitor",
    ),
    Mutant(
        "who may append is looked at when it is appended",
        _ACCESS,
        "        AppendRequest: _appending,",
        "        AppendRequest: _allowing,",
        (
            Patch(
                "penstock.node.partition.log_queries",
                "        if self.rules.allowed is not None:",
                "        if self.rules.allowed:",
            ),
            Patch(
                _STORING,
                "            self.append_to(partition, caller, check.message, check.asked, check.producer)\n",
                "            is_late = check.rules.allowed == ()\n"
                "            heard = InternalCaller(lambda response: None) if is_late else caller\n"
                "            self.append_to(partition, heard, check.message, check.asked, check.producer)\n"
                "            if is_late:\n"
                "                self._outbox.reply(caller, RemoteError(ErrorCode.NOT_AUTHORIZED, 'too late'))\n",
            ),
        ),
    ),
    Mutant(
        "rows on subjects of which no rule speaks are appended",
        _ACCESS,
        "found = self._scope(Operation.APPEND, state)\n        return None if found.is_all else found.subjects",
        "return None",
    ),
    Mutant(
        "a fetch that waits is not looked at again",
        "penstock.node.api.fetch_api",
        "            # Permissions may have changed and the log may have been truncated meanwhile.\n"
        "            waiter.call.authorize()",
        "            assert waiter",
    ),
    Mutant(
        "a change of users is answered before all brokers go by it",
        "penstock.node.controller.user_admin",
        "                self._all.wait(\n                    index, deadline_us,",
        "                (lambda index, deadline_us, done: done(None))(\n                    index, deadline_us,",
    ),
    Mutant(
        "who leads the audit next tells again what was told",
        "penstock.node.controller.audit",
        "                self._written = reading.index",
        "                self._written = 0",
    ),
    Mutant(
        "who altered a stream is not told",
        _ACCESS,
        "        return msgspec.structs.replace(command, by=self.signature, at_us=self._context.now.wall_us)",
        "        return command",
    ),
    Mutant(
        "rows that are there are put again",
        _APPENDING,
        "    if header.base_offset != log.log_end:",
        "    if header.base_offset > log.log_end:",
    ),
    Mutant(
        "rows that are put get the time of now",
        _APPENDING,
        "    header = codec.restamped(check.message, leader_epoch=partition.leader_epoch, flags=asked_flags(asked))",
        "    header = codec.renumber(check.message, base_offset=partition.log.log_end, timestamp_us=now.wall_us,\n"
        "        leader_epoch=partition.leader_epoch, flags=asked_flags(asked))",
    ),
)
"""Mutants of permissions and of imported offsets: some seeds have users, and some an import."""

MUTANTS_OF_SCHEMAS = (
    Mutant(
        "two registrations are made side by side",
        _REGISTRY,
        "        while registrar.waiting and not registrar.is_busy:",
        "        while registrar.waiting:",
    ),
    Mutant(
        "a registration is answered before it is committed",
        _REGISTRY,
        "        self._append(registrar, call, rows, response, sum(one.is_new for one in found))\n        return None",
        "        self._log.append(registrar.partition, registrar.kept, rows, lambda answer: None)\n"
        "        return response",
    ),
    Mutant(
        "what is not compatible is registered",
        "penstock.schemas.registering",
        "    if judging.reasons and not asked.is_forced:",
        "    if False:",
    ),
    Mutant(
        "only the first version is forgotten",
        _REGISTRY,
        "kept.tombstones(gone), ForgetSchemasResponse(",
        "kept.tombstones(gone[:1]), ForgetSchemasResponse(",
    ),
    Mutant(
        "a text goes that another version has",
        "penstock.schemas.kept",
        "        return [text_hash for text_hash, count in left.items() if not count and text_hash in self._texts]",
        "        return [text_hash for text_hash in left if text_hash in self._texts]",
    ),
    Mutant(
        "schemas of streams that are there go",
        _REGISTRY,
        "            return stream_id <= image.index and StreamId(stream_id) not in image.streams",
        "            return stream_id < image.index",
    ),
    Mutant(
        "values are stored while their schemas are not known",
        _VALUES,
        "        if not (partition.lacks_schemas or partition.wants_schemas):\n            return False",
        "        if partition.lacks_schemas:\n            partition.values = KnownSchemas(None)\n        return False",
    ),
    Mutant(
        "new versions are not looked for",
        _VALUES,
        "            if not stream.is_asking and now.elapsed_us >= stream.asked_us + _REFRESH_US:",
        "            if not stream.is_asking and stream.known is None:",
    ),
    Mutant(
        "rows of an append are not checked",
        "penstock.node.partition.log_queries",
        "        if self.rules.values is not None:",
        "        if False:",
    ),
)
"""Mutants of the registry and of checked values: some seeds have schemas."""

MUTANTS_OF_DISKS = (
    Mutant(
        "no background sync",
        "penstock.node.maintenance.log_maintenance",
        "        flush = partition.log.flush()",
        "        flush = partition.log.flush() if partition.waits_for_sync else None",
    ),
)
"""Mutants about when a disk is synced, which the simulator does not measure: `make chaos` finds them."""


MUTANTS_OF_OWNERS = (
    Mutant(
        "the lease of JetStream's API never ends",
        "penstock.node.control.cluster",
        "        return 0 if confirmed_us is None else confirmed_us + _API_LEASE_US\n",
        "        return INT64_MAX\n",
    ),
    Mutant(
        "a metadata leader that was deposed confirms heartbeats",
        "penstock.node.controller.metadata_leader",
        "        if self._is_confirmed or isinstance(response, RemoteError):\n",
        "        if True:\n",
    ),
    Mutant(
        "JetStream's API is taken without the evidence of all",
        "penstock.metadata.controller.api_reports",
        "free.issuperset(live)",
        "free",
    ),
    Mutant(
        "evidence from before a decision counts",
        "penstock.metadata.controller.api_reports",
        "found is not None and found.since >= before.since}",
        "found is not None}",
    ),
)
"""Mutants of the decision who serves JetStream's API: `tests/sim/test_api_ownership.py` finds them."""

MUTANTS_OF_LEVELS = (
    Mutant(
        "what is new does not wait for the level",
        _FEATURES,
        "    if image.feature_level >= needed:\n",
        "    if True:\n",
    ),
    Mutant(
        "the level is lowered",
        "penstock.metadata.effects.brokers",
        "    if command.feature_level < image.feature_level:\n",
        "    if False:\n",
    ),
    Mutant(
        "a broker that is too old for the level is registered",
        "penstock.metadata.effects.brokers",
        "    if level_of(broker_version) < image.feature_level:\n",
        "    if False:\n",
    ),
    Mutant(
        "a broker that is away does not keep the level down",
        _FEATURES,
        "for one, version in known if version and version < needed)",
        "for one, version in known if one.is_live and version and version < needed)",
    ),
    Mutant(
        "a broker applies a level beyond its version",
        "penstock.node.quorum.metadata_entries",
        "    if level_of(broker_version) < image.feature_level:\n",
        "    if False:\n",
    ),
)
"""Mutants of feature levels: they show where brokers of two versions form a cluster."""

MUTANTS_OF_OBSERVERS = (
    Mutant(
        "an observer that has all stands in for who is in sync",
        _LEADER,
        "            if follower.broker_id in self._must_have or follower.is_awaited:\n",
        "            if any(one.log_end == self.log_end for one in self._observers):\n                continue\n"
        "            if follower.broker_id in self._must_have or follower.is_awaited:\n",
    ),
    Mutant(
        "an observer serves what is not committed",
        "penstock.replication.follower",
        "        end = rules.follower_committed_end(self._leader_committed_end, log.log_end)\n",
        "        end = rules.follower_committed_end(self._leader_committed_end, log.log_end)\n"
        "        end = log.log_end if self.is_observer else end\n",
    ),
    Mutant(
        "an observer may lead where nobody else can",
        _ELECTIONS,
        "    if chosen is None and resigned:\n",
        "    if chosen is None and partition.observers:\n"
        "        chosen = _first(partition.observers, live, silent)\n"
        "        others = others if chosen is None else (chosen,)\n"
        "    if chosen is None and resigned:\n",
    ),
    Mutant(
        "who lacks what its leader has told of is taken for fresh",
        _FRESHNESS,
        "        is_complete = self.is_empty or (self._mark_end == _NEVER and self._is_settled)\n",
        "        is_complete = True\n",
    ),
)
"""Mutants of read replicas: they show in clusters with more brokers than a stream has replicas."""


MUTANTS_OF_MARKS = (
    Mutant(
        "a follower surveys for itself",
        "penstock.node.replicas.roles",
        "Deciding.BY_MARKS if is_leader else Deciding.ELSEWHERE",
        "Deciding.BY_MARKS if is_leader else Deciding.ALONE",
    ),
    Mutant(
        "a mark hides the last message of a key",
        _COMPACTION,
        "            self._hides.add(offsets.filter(pc.invert(keep)))\n",
        "            self._hides.add(offsets)\n",
    ),
    Mutant(
        "a survey forgets how long a tombstone stays",
        "penstock.commitlog.cleaner.compactor",
        "while self._passes and self._passes[0][0] <= now_us - config.tombstone_retention_us:",
        "while self._passes and self._passes[0][0] <= now_us:",
    ),
    Mutant(
        "a follower joins by its messages alone",
        _LEADER,
        "            and all(one._lets_join(follower.broker_id, now_us) for one in self.companions)\n",
        "",
    ),
    Mutant(
        "marks are committed without a proposed member",
        _LEADER,
        "        proposed = (self if self.target is None else self.target)._unsettled or ()\n",
        "        proposed = self._unsettled or ()\n",
    ),
    Mutant(
        "a companion does not hear of another ISR",
        _LEADER,
        "            advanced |= companion.image(assignment, live, now_us)\n",
        "            pass\n",
    ),
    Mutant(
        "marks are committed before they are synced",
        "penstock.metadata.companions",
        "        durability=Durability.FSYNC if is_marks else durability,\n",
        "        durability=Durability.OS,\n",
    ),
    Mutant(
        "a new leader shows messages before it knows the marks",
        _COMPANIONS,
        "            return leadership.knows_latest\n",
        "            return True\n",
    ),
    Mutant(
        "a replica shows messages before it has the marks",
        _COMPANIONS,
        "        return as_of_us is not None\n",
        "        return True\n",
    ),
    Mutant(
        "a replica goes by its messages alone in what it says of its age",
        "penstock.node.replicas.replicas",
        "        return None if hidden_us is None else partition.shown_as_of(min(as_of_us, hidden_us))\n",
        "        return as_of_us\n",
    ),
    Mutant(
        "a follower shows rows by metadata older than its leader's",
        "penstock.replication.follower",
        " and end > self.committed_end and not self.is_behind:\n",
        " and end > self.committed_end:\n",
    ),
    Mutant(
        "the longest log leads whatever marks it lacks",
        "penstock.metadata.controller.recoveries",
        "        if rules.has_marks:\n",
        "        if False:\n",
    ),
    Mutant(
        "a broker forgets at a start that there are marks",
        "penstock.node.data_dir.folders",
        "            self.marks_ahead.add(stream_id)\n",
        "            pass\n",
    ),
    Mutant(
        "what is not committed is decided on",
        _DECISIONS,
        "        end = max(begin, partition.committed_end)\n        hides_gaps",
        "        end = max(begin, partition.log.log_end)\n        hides_gaps",
    ),
    Mutant(
        "readers see what is not decided on",
        "penstock.node.partition.visible_rows",
        "        return min(committed_end, max(self._seen_end, decided_end))\n",
        "        return committed_end\n",
    ),
    Mutant(
        "the last message is told before what was acked is decided on",
        _DECISIONS,
        "        if partition.leadership is None or partition.visible_end >= end:\n",
        "        if True:\n",
    ),
    Mutant(
        "a new leader decides on its own messages only",
        _DECISIONS,
        "        begin = max(self._hidden.decided(partition, limit, rollups=rollups), partition.log_start)\n",
        "        begin = max(self._hidden.decided(partition, limit, rollups=rollups), one.leadership.epoch_start)\n",
    ),
    Mutant(
        "a lower limit is not applied to what was decided on",
        "penstock.node.replicas.hidden_rows",
        "        if fold is None or not fold.live.covers(limit, rollups=rollups):\n",
        "        if fold is None:\n",
    ),
    Mutant(
        "secure rows are told as erased once they are hidden",
        "penstock.commitlog.log",
        "        left = sum(left_in(one, rows) for one in self._segments.sealed)\n",
        "        left = 0\n",
    ),
    Mutant(
        "secure rows of the active segment are told as erased",
        "penstock.commitlog.log",
        "        in_active = 0 if active is None else rows.count_in(active.base_offset, self.log_end)\n",
        "        in_active = 0 if active is None else 0\n",
    ),
    Mutant(
        "a follower hides what rows hide that it does not show yet",
        "penstock.node.replicas.hidden_rows",
        "            if decided_end > partition.committed_end and not live.refusal:\n",
        "            if False:\n",
    ),
    Mutant(
        "marks are removed behind a snapshot that is not committed",
        "penstock.node.api.mark_snapshots",
        "            self._write(partition, [row], partial(self._written, partition, writing))\n",
        "            self._write(partition, [row], partial(self._written, partition, writing))\n"
        "            end = self._hidden.marks_end(partition)\n"
        "            self._upkeep.give_up(self._partitions[marks_key(partition.key)], end)\n",
    ),
    Mutant(
        "a snapshot does not say what a limit has decided",
        "penstock.live.live_rows",
        "            decided_end=decided_end,\n            limit=self.limit,\n            rollups=self.rollups,\n",
        "",
    ),
    Mutant(
        "what is left of the marks counts without a snapshot",
        "penstock.live.live_rows",
        "        self.is_whole = not begin  # all marks were taken, or a snapshot of those before `begin`\n",
        "        self.is_whole = True\n",
    ),
)
"""Mutants of companion logs."""


MUTANTS_OF_CONSUMERS = (
    Mutant(
        "what an earlier leadership was given appends to a log of consumers",
        _CONSUMER_LOGS,
        "        is_led = self._partition.leadership is self._leadership\n"
        "        return is_led and self._logs.is_known(self._partition.key, self)\n",
        "        return self._partition.leadership is not None\n",
    ),
    Mutant(
        "consumers are served before all that was found of them is committed",
        _CONSUMER_LOGS,
        "        if kept.rows is not None and kept.partition.committed_end >= kept.end:\n",
        "        if kept.rows is not None:\n",
    ),
    Mutant(
        "a follower joins without the log of consumers",
        _LEADER,
        "            and all(one._lets_join(follower.broker_id, now_us) for one in self.companions)\n",
        "            and (self.marks is None or self.marks._lets_join(follower.broker_id, now_us))\n",
    ),
    Mutant(
        "rows of consumers are answered before they are committed",
        _CONSUMER_LOGS,
        "        self._logs.append(self._partition, rows, partial(self._answered, done))\n",
        "        self._logs.append(self._partition, rows, lambda _: None)\n        done(None)\n",
    ),
)
"""Mutants of logs of consumers."""


MUTANTS_OF_SUBJECTS = (
    Mutant(
        "an index of other messages is believed",
        _SUBJECTS,
        "    if trailer.segment != identity_of(view, segment):",
        "    if False:",
    ),
    Mutant(
        "a part that has grown is not summed up again",
        _SUBJECTS,
        "        if begin < piece.end:\n            total = SubjectSum()",
        "        if known is None:\n            total = SubjectSum()",
    ),
)
"""Mutants of look-ups by subject."""


MUTANTS_OF_EXPECTATIONS = (
    Mutant(
        "a deleted message stays a last message",
        _PARTITION,
        "        if self.log.hidden is not before and not keeps_lasts:\n",
        "        if False:\n",
    ),
    Mutant(
        "a look-up finds deleted messages",
        _PARTITION,
        "        view, is_indexed = self.view().hiding(self.log.hidden), self.log.config.indexes_subjects\n",
        "        view, is_indexed = self.view(), self.log.config.indexes_subjects\n",
    ),
    Mutant(
        "appended rows are no last messages",
        "penstock.node.api.partition_append",
        "    if partition.lasts is not None:\n        partition.lasts.appended(message, base_offset)\n",
        "",
    ),
    Mutant(
        "a new leader answers before it knows what is deleted",
        _PARTITION,
        "            if self._awaits_marks(arrived_us, now, must=must):\n                return None\n"
        "            if not self.knows_hidden:\n",
        "            if False:\n",
    ),
    Mutant(
        "messages that are not committed take no room",
        _ROW_LIMIT,
        "            rows = max(0, self.rows_max - self.rows(start, log.log_end, log.hidden))\n",
        "            rows = max(0, self.rows_max - self.rows(start, max(start, log.committed_end), log.hidden))\n",
    ),
    Mutant(
        "the log takes no room",
        _ROW_LIMIT,
        "            size_bytes = max(0, self.bytes_max - self._bytes(log) - batches * _BATCH_BYTES - SCHEMA_BYTES)\n",
        "            size_bytes = max(0, self.bytes_max - batches * _BATCH_BYTES - SCHEMA_BYTES)\n",
    ),
    Mutant(
        "a client's batch may exceed the limits",
        _PARTITION,
        "        if limit is None or not limit.refuses_new:\n            return None\n",
        "        if True:\n            return None\n",
    ),
    Mutant(
        "a subject may get more messages than it may have",
        "penstock.ingest.admission",
        "        rules.refuses_subjects, found_counts, rules.is_only, verdicts, _mode",
        "        False, found_counts, rules.is_only, verdicts, _mode",
    ),
    Mutant(
        "a client's batch may have more messages of a subject than it may",
        _PARTITION,
        " if self._rules.refuses_subjects and not are_rollups else None\n",
        " if False else None\n",
    ),
    Mutant(
        "messages below the table of counts do not count",
        "penstock.node.partition.last_sequences",
        "            if (counted := self._counted).subjects:\n",
        "            counted = self._counted\n"
        "            self.numbers = [0] * len(counted.subjects)\n"
        "            if False:\n",
    ),
    Mutant(
        "a rollup of a subject replaces nothing",
        "penstock.node.partition.decisions",
        "            return before | self._earlier(later, max(start, of_all))\n",
        "            return before\n",
    ),
    Mutant(
        "a rollup of all takes itself",
        "penstock.node.partition.decisions",
        "        before = RowSet.of_runs([(start, of_all)]) if of_all > start else NONE\n",
        "        before = RowSet.of_runs([(start, of_all + 1)]) if of_all > start else NONE\n",
    ),
    Mutant(
        "a full stream takes what replaces nothing",
        _PARTITION,
        "            replaced = self._replaces(message, step)\n            if isinstance",
        "            replaced = count\n            if isinstance",
    ),
)
"""Mutants of expectations and of streams that refuse what would exceed their limits: some seeds have such writers.

One broker shows them soonest. Left out is a new leader that stores before it has counted: it counts within a read of
its disk. `tests/unit/node/partition/test_row_limit.py` finds it.
"""


MUTANTS_OF_EXPIRY = (
    Mutant(
        "a marker comes though its message has not expired",
        "penstock.node.partition.expiry",
        "pc.less_equal(expiries_us, self._now_us)))",
        "pc.less_equal(expiries_us, self._now_us + 2_000_000)))",
    ),
    Mutant(
        "the last message of a subject goes without a marker",
        "penstock.node.api.expiries",
        "            elif query.emptied:\n",
        "            elif query.emptied and self._rounds.is_stopped:\n",
    ),
)
"""Mutants of expiry and delete markers: `tests/sim/test_markers.py` has the writers that show them.

Left out is a marker that takes what came while the log was read: the time for it is too short here.
`tests/unit/node/test_delete_markers.py` finds it.
"""


MUTANTS_OF_SCHEDULES = (
    Mutant(
        "a schedule is sent again though its message is in the log",
        "penstock.node.api.schedules",
        "        if end < one.sent_end or (one.blocks",
        "        if (one.blocks",
    ),
    Mutant(
        "what was sent ends no schedule",
        "penstock.node.partition.decisions",
        "                ended_at |= self._ending(stored)\n",
        "                pass\n",
    ),
    Mutant(
        "a new leader knows only the schedules that come to it",
        "penstock.node.api.schedules",
        "        self.rules = rules\n",
        "        self.rules = rules; self.blocks.known_end = partition.log.log_end\n",
    ),
)
"""Mutants of schedules: `tests/sim/test_schedules.py` has the writers that show them."""


MUTANTS_OF_RETENTION = (
    Mutant(
        "an ack is answered before its message is hidden",
        "penstock.node.api.consumption",
        "        one.gathered, one.told, one.waiting = NONE, one.waiting, []\n",
        "        [done(None) for done in one.waiting]; one.gathered, one.told, one.waiting = NONE, [], []\n",
    ),
    Mutant(
        "a leader that does not know the consumers drops what they want",
        "penstock.node.api.stream_interest",
        "            if not partition.stream.has_consumers:\n",
        "            if True:\n",
    ),
    Mutant(
        "what no consumer wants is shown before it is decided on",
        "penstock.node.partition.partition",
        " or stream.decides_rollups or config.drops_unwanted\n",
        " or stream.decides_rollups\n",
    ),
)
"""Mutants of work queues and interest: `tests/sim/test_queues.py` has the driver that shows them."""


MUTANTS_OF_GATEWAY = (
    Mutant(
        "a broker denies streams that it does not know yet",
        "penstock.jetstream.gateway",
        "        return confirmed_us is not None and confirmed_us >= since_us\n",
        "        return True\n",
    ),
    Mutant(
        "a reader skips the message behind a chunk",
        "penstock.jetstream.readers.running.serving",
        "            cursor.next_offset = max(cursor.next_offset, chunk.end)\n        self._deliver(",
        "            cursor.next_offset = max(cursor.next_offset, chunk.end + 1)\n        self._deliver(",
    ),
    Mutant(
        "a reader begins behind the message that it asks for",
        "penstock.jetstream.readers.starting",
        "            return Start(max(begin, min(config.start_seq - 1, POSITION_MAX)))\n",
        "            return Start(max(begin, min(config.start_seq, POSITION_MAX)))\n",
    ),
    Mutant(
        "num_pending counts what is deleted",
        "penstock.jetstream.readers.starting",
        "        return Pending(wanted + (found.rows or 0), int(found.committed_end), version)\n",
        "        return Pending(int(found.committed_end) - offset, int(found.committed_end), version)\n",
    ),
    Mutant(
        "num_pending is not counted anew after a deletion",
        "penstock.jetstream.readers.feed",
        "        if self.version is None or not is_same or shown.log_start != before.log_start:\n",
        "        if self.version is None:\n",
    ),
    Mutant(
        "the filter of a reader that is made anew is forgotten",
        "penstock.jetstream.readers.requests.creation",
        "        cursor = new_cursor(feed.filter_of(config.filters), state.name, name, start.offset)\n",
        "        wanted = feed.filter_of(() if start.offset else config.filters)\n"
        "        cursor = new_cursor(wanted, state.name, name, start.offset)\n",
    ),
    Mutant(
        "a deleted reader is sent what comes later",
        "penstock.jetstream.readers.running.registry",
        "        for _ in feed.unfollow([reader.cursor for reader in readers if reader.place is Place.FOLLOWING]):\n"
        "            pass\n",
        "",
    ),
    Mutant(
        "deleted messages are delivered",
        "penstock.jetstream.readers.chunks",
        "        for one in self.rows:\n            one.skip(_marks(one.offsets, hidden))\n",
        "",
    ),
    Mutant(
        "a follower answers look-ups",
        "penstock.node.replicas.partition_lookup",
        "        if (refusal := no_leader_error(self._context.image, partition)) is not None:\n",
        "        if False and (refusal := no_leader_error(self._context.image, partition)) is not None:\n",
        (
            Patch(
                "penstock.jetstream.gateway",
                " or (leader := stream.partitions[0].leader) == self.node.broker_id:\n",
                " or (leader := stream.partitions[0].leader) or True:\n",
            ),
            Patch(
                _PARTITION,
                "            return\n        if leadership is None or self.is_mute:\n",
                "            return\n        if leadership is None:\n            return\n        if self.is_mute:\n",
            ),
        ),
    ),
    Mutant(
        "a batch look-up leaves out its first message",
        "penstock.jetstream.lookups",
        "            begin=_offset(query.seq) if begin_us is None else Offset(0),\n",
        "            begin=Offset(_offset(query.seq) + 1) if begin_us is None else Offset(0),\n",
    ),
    Mutant(
        "the end of a batch look-up counts what was sent",
        "penstock.jetstream.lookups",
        "                batch.pending = max(0, batch.pending - sent)\n",
        "                pass\n",
    ),
)
"""Mutants of JetStream's API; `tests/sim/test_gateway.py` has plans that find them within seconds."""


MUTANTS_OF_BATCHES = (
    Mutant(
        "half of an atomic batch is stored",
        _PARTITION,
        "        refusal = self._write(admission.rows, 0, group.count, admission.flags, now, step, early, late)\n",
        "        half = group.count - group.count // 2\n"
        "        refusal = self._write(admission.rows, 0, half, admission.flags, now, step, early, late)\n",
    ),
    Mutant(
        "an atomic batch is stored though it lacks a message",
        "penstock.ingest.atomic_batches",
        "        if sequence != kept + 1 or (sequence == 1 and message.commit is Commit.BEFORE_THIS):\n",
        "        if sequence == 1 and message.commit is Commit.BEFORE_THIS:\n",
    ),
    Mutant(
        "all but the last message of an atomic batch is shown",
        _PARTITION,
        "if self.needs_decisions else self.committed_end\n\n    @property\n    def lasts_end",
        "if self.needs_decisions else max(0, self.committed_end - self.stream.config.allows_batches)\n\n"
        "    @property\n    def lasts_end",
    ),
)
"""Mutants of atomic batches."""


MUTANTS_OF_ACKS = (
    Mutant(
        "an ack is answered before it is committed",
        "penstock.jetstream.readers.stored.acks",
        "                led.answer(reply)\n",
        '                self._gateway.send(publish_command(reply, b""))\n',
    ),
    Mutant(
        "a delivery of a consumer with max_deliver is sent before it is committed",
        "penstock.jetstream.readers.running.serving",
        "        waits = led.state.config.commits_first\n",
        "        waits = False\n",
    ),
    Mutant(
        "a new leader does not read the last changes of a consumer",
        "penstock.consumers.fold",
        "_completing(snapshot, changes.get(consumer_id, {}))\n",
        "_completing(snapshot, changes.get(consumer_id, {}))[:-3]\n",
    ),
    Mutant(
        "messages are due by the time of day",
        "penstock.jetstream.readers.stored.stored",
        "        due = led.state.due_us() <= now.elapsed_us\n        if not due and not is_new:\n            return\n"
        "        given_up = led.state.expire(now.elapsed_us) if due else []\n",
        "        wall_us = now.wall_us - 1_700_000_000_000_000\n"
        "        due = led.state.due_us() <= wall_us\n        if not due and not is_new:\n            return\n"
        "        given_up = led.state.expire(wall_us) if due else []\n",
    ),
    Mutant(
        "the ack floor is told over messages in hand",
        "penstock.jetstream.readers.requests.infos",
        "            last = min(table.floor_offset(), cursor.last_offset + 1) if table.count else",
        "            last =",
    ),
    Mutant(
        "messages that are gone stay in hand",
        "penstock.jetstream.readers.stored.again",
        "    if not table.count:\n",
        "    if table.count >= 0:\n",
    ),
    Mutant(
        "slots of changes are used again before a snapshot",
        "penstock.consumers.rows",
        "SLOTS = 256\n",
        "SLOTS = 16\n",
    ),
    Mutant(
        "name and snapshot of a deleted consumer stay",
        "penstock.consumers.state",
        "        return [(key, None) for key in rows.keys_of(self.consumer_id, self._number)]\n",
        "        return [(key, None) for key in rows.keys_of(self.consumer_id, max(1, self._number))[2:]]\n",
    ),
)
"""Mutants of consumers with acks; `tests/sim/test_consumers.py` has plans that find them."""


ALL = (
    *MUTANTS,
    *MUTANTS_OF_ACKS,
    *MUTANTS_OF_BATCHES,
    *MUTANTS_OF_GATEWAY,
    *CLUSTER_MUTANTS,
    *MUTANTS_OF_SUBJECTS,
    *MUTANTS_OF_RIGHTS,
    *MUTANTS_OF_SCHEMAS,
    *MUTANTS_OF_MARKS,
    *MUTANTS_OF_CONSUMERS,
    *MUTANTS_OF_EXPECTATIONS,
    *MUTANTS_OF_LEVELS,
    *MUTANTS_OF_OWNERS,
    *MUTANTS_OF_OBSERVERS,
    *MUTANTS_OF_DISKS,
    *MUTANTS_OF_EXPIRY,
    *MUTANTS_OF_SCHEDULES,
    *MUTANTS_OF_RETENTION,
)


def named(name: str) -> Mutant:
    """Return the mutant of this name."""
    return next(mutant for mutant in ALL if mutant.name == name)


def install(name: str) -> None:
    """Install a mutant in this process; an empty name installs none."""
    if name:
        plant(named(name))
