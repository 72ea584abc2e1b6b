"""Size and queue limits that several modules, tests or pages name, with the reason for each number.

A limit that only one module knows is beside its use.
"""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Names and messages
STREAM_NAME_CHARS_MAX = 128  # with the stream id it must fit a directory name (255 bytes)
SUBJECT_BYTES_MAX = 1024  # nats-server's own control line is 4 KiB: subject, reply and sizes share it
FLOW_CONTROL_SUBJECT_BYTES_MAX = 384  # in a header: the answer's line fits into a `max_control_line` of 512
HEADER_BLOCK_BYTES_MAX = 64 * KIB  # as JetStream (err_code 10097)
CORRELATION_ID_BYTES_MAX = 1024  # of an envelope: its ack repeats it, and is held with it until the sync
ENVELOPE_HEADERS_MAX = 1_000  # entries in one envelope's headers; a message with more is stored unopened
KEY_BYTES_MAX = 32 * KIB  # a key is an identity, not a document
MESSAGE_BYTES_MAX = 64 * MIB  # a message is held in memory several times; nats-server's default is 1 MiB
MESSAGE_BYTES_DEFAULT = 8 * MIB
OFFSET_MAX = 2**63 - 1
APPEND_AT_END_MAX = 2**53
"""Limit of offsets given by an appender: JSON readers lose precision beyond it, and later appends need room."""
RESTORE_VERIFY_BYTES_PER_S = 1 << 30
"""Read rate while a stream is compared with a backup; high, as the stream is not in use yet."""
APPEND_AT_TIME_US_MAX = 7_258_118_400_000_000
"""The beginning of the year 2200: limit of timestamps given by an appender, so that later ones stay valid dates."""

APPEND_AT_AHEAD_MS = 60_000
"""Given timestamps may be this far ahead of the broker's clock, as they come from another machine."""
TTL_S_MAX = 9_000_000_000  # about 285 years: a timestamp plus it stays representable
DEDUP_WINDOW_MS_DEFAULT = 120_000  # as JetStream
DEDUP_IDS_DEFAULT = 1_000_000  # message ids kept per partition: some 250 MB if publishers send that many
DEDUP_IDS_MAX = 10_000_000
MESSAGE_ID_KEY_BYTES_MAX = 65  # stored form of an id: the id itself, or a digest with a prefix byte
MESSAGE_IDS_PER_ANSWER_MAX = 4_096  # sent to the leader of an added partition: some 350 KiB
MESSAGE_IDS_READ_BYTES_MAX = 16 * MIB  # read for one such answer; one batch may exceed it
MESSAGE_IDS_READ_BATCHES_MAX = 65_536  # batches read for it; of those without ids only the headers
MESSAGE_IDS_RUNNING_MAX = 2  # concurrent answers of this kind
MESSAGE_IDS_WAITING_MAX = 1_024
MESSAGE_IDS_WAIT_MS = 2_000  # for one of them; meanwhile messages wait, and are refused after that
LAST_OFFSETS_MAX = 100_000  # subjects per partition with a known last message: some 30 MB at the limit
LAST_OFFSETS_READ_BYTES_MAX = 64 * MIB  # read from the end of a log to find them, while its messages wait
PRODUCERS_MAX = 10_000  # known per partition: some 10 MB; the one idle for longest is dropped first
PRODUCER_BATCHES_KEPT = 5  # per producer, as in Kafka: so many may be in flight at once
PRODUCER_WINDOW_MS = 600_000  # latest time of a retry; a new leader reads the headers of this much of the log once
STREAMS_MAX = 100_000
PARTITIONS_MAX = 100_000  # of all streams together: each costs a folder, a subscription and memory
STREAM_PARTITIONS_MAX = 1_024  # of one stream
OVERLAPPING_TOLD_MAX = 10  # streams with overlapping subjects reported to the creator of a stream
KEY_MAP_VERSIONS_MAX = 16  # changes of a stream's number of partitions, including the initial one
QUEUE_GROUP_CHARS_MAX = 128  # name of a queue group that streams join
REPLICAS_MAX = 7  # per partition: each replica is another copy to send and to wait for
REPLICAS_DEFAULT = 3  # if the cluster has that many brokers, reachable or not
OBSERVERS_MAX = 16  # per partition: the leader sends each a copy, too

# Cluster
BROKERS_MAX = 1_000  # of one cluster, including unreachable ones
ISR_CHANGES_PER_COMMAND_MAX = 4_096  # with the longest ISRs still a metadata command of half a MiB
ELECTIONS_PER_COMMAND_MAX = 4_096  # some 30 bytes each
LOG_ENDS_PER_HEARTBEAT_MAX = 4_096  # some 20 bytes each; if there are more, the next heartbeat is sent at once
RECOVERIES_PER_COMMAND_MAX = 2_048  # some 30 bytes each with three replicas
RECOVERY_WAIT_MS = 5_000  # wait for the logs of replicas that were not in the ISR: they help, but are not required
HEARTBEAT_MS = 500  # interval of a broker's heartbeats to the metadata leader
HEARTBEAT_RETRY_MS = 20  # a newly elected metadata leader must persist its election before it answers
SESSION_MS = 3_000  # session time-out: without a heartbeat for so long a broker is fenced
SILENT_REFUSAL_LOG_MS = 60_000  # interval of log lines about messages refused without an answer to their publishers
REFUSALS_CONFIRM_MS = 10  # interval of heartbeats that confirm leadership, for refusals that wait for that
COMMIT_REFUSAL_WAIT_MS = 1_000  # an offset commit beyond the log's end waits so long for the leader to be confirmed
DEFERRED_COMMIT_REFUSALS_MAX = 1_024  # such commits on one broker; further ones are accepted unchecked
REFUSALS_WAITING_BYTES_MAX = 8 * MIB  # size of waiting refusals; further ones are dropped
HEARTBEATS_ANSWERED_MAX = 64  # heartbeats whose answers wait for a commit; those with the same one count once
RECENT_HEARTBEAT_MS = 1_500  # a broker silent for so long gets no new leaderships or replicas if others can take them
LEADER_REPORT_WINDOW_MS = 2_000  # reports of several followers about an unreachable leader count together within it
PREFERRED_LEADER_STEADY_MS = 30_000  # in sync for so long, a preferred leader is elected again
PREFERRED_LEADER_INTERVAL_MS = 2_000  # interval of checks for preferred leaders
PREFERRED_ELECTIONS_MAX = 256  # per check: each delays its publishers for a moment
ISR_REQUESTS_WAITING_MAX = 64  # of one broker, while a command with its changes is being committed

# Users
USERS_MAX = 10_000
USER_NAME_CHARS_MAX = 64
USER_RATE_MIN = 1 * KIB  # bytes per second; with less a program seems to hang
USER_RATE_MAX = 1 << 40
USER_MESSAGE_IDS_MAX = 2**53  # quota of one user: more than all partitions can hold
CREDENTIALS_PER_USER_MAX = 16
RULES_PER_USER_MAX = 256
PERMISSION_CACHE_USERS_MAX = 1_000  # users whose evaluated rules a broker caches
PERMISSION_CACHE_STREAMS_MAX = 20_000  # streams cached for each of them
SALT_BYTES = 16
PASSWORD_CHARS_MIN = 8
PASSWORD_ITERATIONS = 600_000  # some 0.15 s for each password attempt, spent by the client; brokers do not compute it
USERS_PER_ANSWER_MAX = 200
CLUSTER_SECRET_CHARS_MIN = 32
CLUSTER_SECRET_ITERATIONS = 10_000  # some 2 ms: the secret is random and not memorised
THROTTLE_MS_MAX = 60_000  # longest delay reported at once; a client that comes back too early is told again
AUDIT_ACTS_KEPT = 10_000  # kept by each broker until they are written; some 5 MB
AUDIT_ROWS_AT_ONCE = 1_000
AUDIT_AGE_MS = 366 * 24 * 3_600_000
AUDIT_SEGMENT_AGE_MS = 7 * 24 * 3_600_000
LOGIN_MESSAGE_BYTES_MAX = 4 * KIB
NATS_LOGIN_FILE_BYTES_MAX = 64 * KIB  # a NATS login file: a JWT may be long
CREDENTIALS_FILE_BYTES_MAX = 4 * KIB

# Batches and segments
BATCH_ROWS_MAX = 65_536  # far more than one socket read delivers
BATCH_BYTES_MAX = 128 * MIB  # Arrow's 32-bit value offsets end at 2 GiB; memory is the tighter limit
BATCH_ROWS_BYTES_MAX = 96 * MIB  # rows in one batch by a leader: with Arrow's metadata below BATCH_BYTES_MAX
SEGMENT_BYTES_DEFAULT = 128 * MIB
SEGMENT_BYTES_MIN = 4 * KIB
SEGMENT_BYTES_MAX = 16 * GIB

# Log
SCAN_READ_BYTES = 1 * MIB  # size of one read during a scan
RESYNC_BYTES_MAX = 1 * GIB  # total size of false candidates verified in the search for the next batch behind corruption
UNINDEXED_BATCHES_MAX = 64  # batches missing in a log's index: one flush in so many writes the entries
UNINDEXED_BYTES_MAX = 8 * MIB  # the same in bytes: a start after a crash scans so much
INDEX_GAP_BATCHES_MAX = 1_024  # read in one go to complete an index after a failed write; 50 µs each
CHECKPOINT_SYNC_INTERVAL_MS = 1_000  # an older checkpoint only costs a longer scan at the next start
RETENTION_INTERVAL_MS = 1_000
MERGED_ROWS_MAX = 16_384  # rows of a batch made by the cleaner
MERGED_BYTES_MAX = 8 * MIB  # bytes of a batch made by the cleaner
MERGED_SHARE = 16  # N: also at most 1/N of a stream's max_bytes, which is exact to the batch
COMPRESSION_SAVING = 10  # N: data that shrinks by less than 1/N is stored uncompressed
COMPRESSED_BATCH_BYTES_MIN = 4 * KIB  # smaller batches stay plain: decompressing sixteen buffers costs readers more
CLEANING_SMALL_BATCH_BYTES = 64 * KIB  # average size from which merging is not worth it: 720 bytes are 1 % of it
CLEANING_WINDOW_BYTES = 20 * MIB  # read for one merged batch: room for its single messages of 256 bytes, and more
CLEANING_SLICE_BYTES = 4 * MIB  # read and written before other work gets a turn
CLEANING_BYTES_PER_S_DEFAULT = 32 * MIB  # per broker, read and written: a small part of a disk's throughput
VERIFY_RANGE_OFFSETS = 65_536  # offsets per checksum in replica comparison: some 200 bytes of memory each
VERIFY_BYTES_PER_S_DEFAULT = 64 * MIB  # per broker that verifies: a part of a disk's throughput
VERIFY_SLICE_BYTES = 4 * MIB  # read for one answer; one batch may exceed it
VERIFY_SLICE_BATCHES = 256  # batches per answer: small ones cost the interpreter some 50 µs each
VERIFY_JOINED_BATCHES = 128  # batches per checksum call: each call costs some 0.1 ms
VERIFY_JOINED_BYTES = 1 * MIB  # the same in bytes; one batch may exceed it
VERIFY_REST_SHARE = 1  # after each answer the broker is left alone for this multiple of its duration
VERIFY_RUNNING_MAX = 1  # per broker: the event loop must get its turn
VERIFY_WAITING_MAX = 64
VERIFY_AGAIN_MAX = 3  # checks of a segment with errors: a broker may have truncated or cleaned it meanwhile
VERIFY_MISTAKES_MAX = 1_000  # errors listed per log; further ones are counted
VERIFY_SIDE_PLACES_MAX = 10  # errors in indexes, checkpoint and lineage per answer
VERIFY_ROWS_LISTED_MAX = 10  # differing offsets listed per range
COMPACTION_DIRTY_SHARE = 2  # N: a log is compacted when at least 1/N of its bytes are dirty
COMPACTION_KEYS_MAX = 2_000_000  # held in one pass; the next pass continues behind
COMPACTION_KEY_BYTES_MAX = 128 * MIB  # size of these keys with their offsets; a merge takes some six times as much
COMPACTION_ROWS_AT_ONCE = 1_000_000  # clean rows looked up at once among all recorded keys
COMPACTION_FORCED_BYTES_MAX = 8 * MIB  # size of keys that stay only to cover offsets; beyond it no tombstone is removed
COMPACTION_FORCED_BYTES_EACH = 64  # overhead per such key
COMPACTION_PASSES_MAX = 256  # passes remembered until tombstones may be removed
COMPACTION_RETRY_MS = 60_000  # after a failed pass or merge; doubled for each failure in a row
COMPACTION_RETRY_MS_MAX = 3_600_000
MERGE_TRIES_MAX = 10  # per segment; then it stays unmerged until a restart, and others get their turn
TOMBSTONE_RETENTION_MS_DEFAULT = 24 * 3_600_000
EXPIRING_SEGMENTS_MAX = 10_000  # per log: segments whose next expiry is remembered
EXPIRING_SEGMENT_AGE_MS = 3_600_000  # roll age if messages may expire: only sealed segments are checked
ROLLUP_PASSES_SHARE = 10  # N: passes for rollups take at most 1/N of the time
ROLLUP_RETRY_MS = 1_000  # after a failed rollup of all earlier messages
CLEANED_KEEP_MS = 10_000  # a replaced segment stays so long, as a response may be about to open it
LINEAGE_ENTRIES_MAX = 10_000  # beyond it, leaderships that ended before log_start are dropped
LINEAGE_ENTRIES_READ_MAX = 100 * LINEAGE_ENTRIES_MAX  # some 24 MB; a file with more entries is corrupt
REBUILT_INDEX_BYTES_MAX = 32 * MIB  # per log: rebuilt indexes kept in memory, as writing them may fail
LOG_FILES_MAX = 1_024  # logs with an open file, unless the broker computes its own limit
LOG_FILES_LOOKS_MAX = 64  # logs asked to close their file before a message has to wait
LOG_IDLE_MS = 30_000  # a log idle for so long closes its file and frees its memory
MAINTENANCE_VISITS_MAX = 64  # logs that get time-based work in one turn of the event loop
MAINTENANCE_RETRY_MS = 1_000  # delay before failed work is retried
REMOVAL_RETRY_MS_MAX = 600_000  # of failed file removals: doubled up to this
MAINTENANCE_TURN_MS = 5  # delay until the next turn while more logs wait
IDENTITY_BYTES_MAX = 64 * KIB  # size of penstock.json; usually some 200 bytes
CUT_FILES_MAX = 1_000  # side files per position; recovery never overwrites one
DISK_WORK_AHEAD = 2  # queued items per reading disk thread; beyond it users take turns
NAME_CHECK_INTERVAL_MS = 100  # between looks whether a log's file was removed; acked meanwhile, as before a removal
KERNEL_SYNCS_MAX = 64  # syncs in the kernel at once, which hold its workers if the disk hangs; the others take threads
DISK_THREADS_DEFAULT = 16  # of each kind of work; they wait for the disk, and a slow one needs so many concurrent syncs

# Connections between brokers
PEER_REQUESTS_MAX = 1_024  # per peer; a Raft message counts until it is accepted
PEER_BUFFER_BYTES_MAX = 256 * MIB  # like BROKER_BUFFER_BYTES_MAX, separately for peers: clients cannot exhaust it
PEER_PING_MS = 1_000  # a peer silent for so long is pinged
PEER_SILENCE_MS_MAX = 5_000  # a peer silent for so long is lost; both sides close the connection
PEER_ANSWER_MS_MAX = 60_000  # for one answer; extended while a large one arrives at TRANSFER_BYTES_PER_S_MIN
PEER_STEADY_MS = 5_000  # a connection that lived so long is replaced at once if it is lost
ID_CONFLICT_MS = 10_000  # a starting broker refused for so long because its id is in use exits
PEER_LOG_INTERVAL_MS = 60_000  # interval of log lines about errors of one peer; it doubles
PEER_LOG_INTERVAL_MS_MAX = 3_600_000  # up to this, while the peer is unreachable

# Replication
REPLICA_POSITIONS_MAX = 10_000  # per request: at most 44 bytes each, so they fit REQUEST_BODY_BYTES_MAX
REPLICA_NAMED_AT_ONCE = 1_000  # sent by this version: so many block the leader's event loop for some 13 ms
REPLICA_FETCH_BYTES = 8 * MIB  # per answer to a follower; one batch may exceed it, so that a large message gets through
REPLICA_ANSWER_MS = 1_000  # target duration of an answer: on a slow link less is requested
REPLICA_CATCH_UP_BYTES = 2 * MIB  # of them, for replicas outside the ISR while others have new data
REPLICA_SHARE_BYTES_MIN = 64 * KIB  # per partition and answer: less would be all requests and no data
REPLICA_MEMORY_BYTES_MAX = 64 * KIB  # size of a batch kept in memory for followers until it is committed
REPLICA_RANGES_MAX = 128  # file ranges per answer; each holds a file open until it is sent
REPLICA_FETCH_WAIT_MS = 500  # long poll of a follower
REPLICA_FETCH_TIMEOUT_MS = 1_500  # a leader without an answer for so long is reported; long polls take a third
REPLICA_NEWS_DELAY_MS = 10  # a new high watermark waits so long for data to travel with
REPLICA_RETRY_MS_MIN = 50  # after the first failure; doubled for each further one
REPLICA_RETRY_MS_MAX = 1_000
REPLICA_LAG_MS_MAX = 10_000  # a follower that was not caught up for so long leaves the ISR
CATCH_UP_BYTES_PER_S_DEFAULT = 320 * MIB  # per broker, for all its replicas outside the ISR
CATCH_UP_UNSYNCED_BYTES_MAX = 64 * MIB  # of their data not yet synced: a slow disk slows catch-up down
SCRUB_BYTES_PER_S_DEFAULT = 8 * MIB  # per broker: a TiB in 1.5 days, and less than a tenth of a disk's throughput
SCRUB_BATCH_BYTES = 8 * KIB  # added to each batch's size, as its processing takes as long as so many bytes
SCRUB_SLICE_BYTES = 1 * MIB  # read before other work gets a turn
SCRUB_INTERVAL_MS_DEFAULT = 24 * 3_600_000  # from the start of one pass over all logs to that of the next
SCRUB_INTERVAL_MS_MIN = 1_000
SCRUB_INTERVAL_MS_MAX = 365 * 24 * 3_600_000
SCRUB_FIRST_MS = 600_000  # latest start of the first pass
SCRUB_PAUSE_MS = 1  # minimum pause between two slices: passes over thousands of small logs leave time for others
REPAIR_BYTES_PER_S = 64 * MIB  # per broker, read and written for repairs
REPAIR_RETRY_MS = 5_000  # after a failed repair; doubled for each further one
REPAIR_RETRY_MS_MAX = 600_000
REPAIR_SOON_MS = 250  # after corruption is found while in the ISR: the other replicas are about to learn of it
REPAIR_BYTES_AT_ONCE = 4 * MIB  # per request to another replica
JOIN_AWAITED_MS = 1_000  # commits wait at most so long for a joining replica; once in REPLICA_LAG_MS_MAX
CATCH_UP_GAIN = 2  # catch-up rate as a multiple of the publish rate, so that each replica catches up
ISR_CHANGE_TIMEOUT_MS = 2_000  # an ISR change without an answer is requested again
ISR_RETRY_MS = 250  # after a refused ISR change or a lost answer
KEYS_SETTLE_MS = 100  # after it, messages in flight between NATS servers have arrived: before moved keys are accepted
ISR_RETRY_SOON_MS = 50  # after a broker that is not the metadata leader answered: all acks may wait for it
PROCESS_ID_CHARS_MAX = 64  # id of a broker process
RUNS_MAX = 64  # unreported starts of a broker; further ones share the name of the last
SHARED_ISRS_MAX = 1_024  # distinct ISRs and commit conditions shared by all partitions that have them

# Groups
GROUP_NAME_CHARS_MAX = 128  # as of a stream name
OFFSETS_PARTITIONS = 16  # of the stream of committed offsets: spreads groups over so many leaders
OFFSETS_SEGMENT_BYTES = 16 * MIB  # of that stream: superseded commits stay in few segments
OFFSETS_KEPT_MAX = 50_000  # kept in memory per partition, shared by users: some 30 MB, 75 MB with long notes
OFFSETS_PER_COMMIT_MAX = 1_024  # per request: a stream has as many partitions
OFFSET_METADATA_CHARS_MAX = 256  # length of the note with an offset
GROUP_MEMBERS_MAX = 256  # one row of the log lists all of them
GROUP_PARTITIONS_MAX = 4_096  # shared by the members of one group: in the same row, then of some 60 KB
GROUP_STREAMS_MAX = 64  # subscribed by one member
GROUP_SESSION_MS_MIN = 500
GROUP_SESSION_MS_MAX = 60_000  # a member that has not contacted a new coordinator keeps its partitions for so long
GROUP_SESSION_MS_DEFAULT = 10_000
GROUPS_IN_USE_MAX = 1_000  # groups with members, per partition of the stream of offsets; users have shares
PRODUCERS_PER_ANSWER_MAX = 1_000  # per partition, in one page of a list
GROUP_STREAMS_PER_ANSWER_MAX = 4_096  # pairs of group and stream in one page of a list

# Schemas
SCHEMA_BYTES_MAX = 768 * KIB  # text and closure of one, as UTF-8: a request and a row with them stay below their limits
SCHEMA_FILES_MAX = 100  # included by one contract
SCHEMA_ENTRIES_MAX = 256  # subjects registered by one request: the operations of a large contract
SCHEMA_NAME_CHARS_MAX = 1_024  # of a type, an included file, or an operation
SCHEMA_VERSIONS_PER_SUBJECT_MAX = 100  # a new one is compared with all of them
SCHEMA_VERSIONS_PER_STREAM_MAX = 1_000
SCHEMA_VERSIONS_KEPT_MAX = 20_000  # in the cluster, shared by users: some 20 MB in memory at their leader
SCHEMA_TEXTS_BYTES_MAX = 128 * MIB  # of all texts, shared by users, in memory at their leader
SCHEMA_SEGMENT_BYTES = 16 * MIB  # of the stream of schemas
SCHEMA_REGISTRATIONS_WAITING_MAX = 64  # one is checked at a time; further ones are refused
SCHEMAS_PER_ANSWER_MAX = 500  # in one page of a list
SCHEMA_TOMBSTONES_AT_ONCE = 1_000  # in one batch: of deleted streams, or of a forgotten subject
SCHEMA_CHECK_REFRESH_MS = 1_000  # leaders of streams that check values look for new versions
SCHEMA_LOOKUP_INTERVAL_MS = 100  # between two looks for versions that messages name and no broker has told of yet
SCHEMA_LOOKUP_WAIT_MS = 2_000  # of a message for such a look; then its publisher is told to try again
SCHEMA_SUBJECTS_KEPT_MAX = 10_000  # of which it is known which pattern they match, in one check or reader
SCHEMA_CHECK_BYTES_MAX = 64 * MIB  # of the texts of one stream that a leader checks values by
SCHEMA_CHECK_WAIT_MS = 10_000  # for an answer of the leader of the schemas; then it is asked again
SCHEMA_CHECK_RETRY_MS_MAX = 60_000  # a check that could not be made is made again
SCHEMA_COMPARED_BYTES_MAX = 8 * MIB  # of the texts that one registration is compared with: some seconds of a thread
SCHEMA_DEFAULT_BYTES_MAX = 1 * KIB  # of one field of Avro: each message of a version without it gets that much more
SCHEMA_DEFAULTS_BYTES_MAX = 1 * GIB  # of one field in one batch; its rows are refused beyond it
SCHEMA_REASONS_MAX = 20  # why a schema is incompatible, in one error; further ones are counted
SCHEMA_REASON_CHARS_MAX = 300

# Staging, and publishing as runs
STAGED_BYTES_MAX = 8 * GIB  # per partition: beyond it the oldest staged rows are removed
STAGED_AGE_MS = 24 * 3_600_000  # unpublished rows are removed after it
STAGED_SEGMENT_BYTES = 64 * MIB  # retention removes whole segments; at most the stream's own segment size
STAGED_KEEP_MS = 600_000  # published rows are kept so long, as another attempt may still read a plan
STAGED_CLOCKS_APART_MS = 600_000  # if two leaders' clocks differ by more, published rows stay for STAGED_AGE_MS
STAGED_SEGMENT_AGE_MS = 3_600_000
PIECE_BYTES_MAX = 32 * MIB  # rows of one piece as cut by a client; a single staged batch may be larger
STAGED_PER_PIECE_MAX = 4_096  # staged batches per request: some 100 KB
PUBLISHED_WINDOW_MS = 7 * 24 * 3_600_000  # as Kafka's transactional ids: an idle query is forgotten after it
PUBLISHED_QUERIES_MAX = 10_000  # known per partition: some 5 MB; the one idle for longest is dropped first
PUBLISHED_ONCE_MAX = 1_000  # single-batch publishers known in addition, to recognise a repeated request
PUBLISHED_PER_ANSWER_MAX = 1_000  # per partition, in one page of a list
PUBLISHES_WAITING_MAX = 1_024  # requests per broker; further ones are refused
PUBLISHES_AT_WORK_MAX = 2  # assembled concurrently: each takes the memory of its piece a few times
PUBLISH_WAIT_MS = 5_000  # wait for staged rows to be committed here; then the client retries

# Archives
ARCHIVES_MAX = 8  # per stream; the metadata list each for each partition
ARCHIVE_NAME_CHARS_MAX = 64

# Socket API
HELLO_BYTES_MAX = 4 * KIB  # an unauthenticated client gets no more memory than this
REQUEST_BODY_BYTES_MAX = 1 * MIB
APPEND_BYTES_MAX = 65 * MIB  # raw bytes behind the body of one append: the longest message with Arrow's metadata
RESPONSE_BYTES_MAX = 256 * MIB
FRAME_ENCRYPTION_BYTES = 33  # added to a frame by encryption between brokers
FETCH_BYTES_DEFAULT = 4 * MIB
SENDFILE_SLICE_BYTES = 512 * KIB  # some 160 µs of the event loop; half costs a tenth more CPU, twice saves none
FETCH_BYTES_MAX = 64 * MIB  # a fetch may exceed it by one batch, so that a large message gets through
FETCH_WAIT_MS_MAX = 60_000
FETCH_SUBJECTS_MAX = 64  # patterns per fetch
FETCHES_WOKEN_MAX = 64  # waiting fetches answered per turn of the event loop: one message may wake any number
PROJECTIONS_RUNNING_MAX = 2  # fetches of some columns or subjects: as many threads process batches
PROJECTIONS_WAITING_MAX = 1_024
PROJECTED_SOURCE_BYTES_MAX = 64 * MIB  # read for one of them, uncompressed; one batch may exceed it
PROJECTED_BYTES_MAX = 16 * MIB  # one such answer, held in memory; one batch may exceed it
PROJECTED_PIECE_BYTES = 512 * KIB  # read at once: single messages of that size block the loop for 1 ms
PROJECTED_PIECE_BYTES_MAX = 8 * MIB  # the same for large batches, unless one alone is larger
CONNECTIONS_MAX = 10_000  # of clients; those of other brokers come in addition
STRANGERS_MAX = 64  # in addition, connections that have not yet identified themselves as brokers
STRANGERS_SHARE = 8  # N: with fewer connections, 1/N of them, as they hold descriptors, too
UNKNOWN_PEERS_MIN = 16  # minimum of unregistered brokers: a forming cluster has five voters
METADATA_STREAMS_MAX = 1_000  # streams in one page of metadata
METADATA_PARTITIONS_MAX = 4_096  # partitions of them, unless the first stream alone has more: 50 ms of the event loop
QUERIES_RUNNING_MAX = 3  # offset lookups and lists; a few threads' worth, so that the event loop gets its turn
SEARCHES_RUNNING_MAX = 1  # of them, searches by key or subject: they read up to SCAN_BYTES_MAX each
QUERIES_WAITING_MAX = 4_096
TURN_BYTES = 64 * KIB  # cost of a user's turn in a queue, in addition to the bytes read
TURN_BYTES_PER_US = 1_000  # bytes charged per µs of the event loop, where turns run on it
SCAN_BYTES_MAX = 1 * GIB  # read by one search from the end of the log
IN_FLIGHT_REQUESTS_MAX = 256  # per connection; further frames stay in the socket
REQUESTS_PER_TURN_MAX = 64  # of all connections, per turn of the event loop: acks wait no longer than that
REQUEST_TURN_US_MAX = 2_000  # the same as a time; a single request may take longer
HELLO_TIMEOUT_MS = 5_000  # from accept to the complete hello
LOGIN_TIMEOUT_MS = 15_000  # from accept to the end of login: a slow machine needs time for a password
UNKNOWN_SHARE = 4  # N: at most 1/N of the connections may be not logged in; beyond it the oldest is closed
LOGIN_COMPLAINT_INTERVAL_MS = 10_000  # interval of log lines about failed logins
REVOKED_IDLE_MS = 30_000  # an idle connection whose credential was revoked is closed after it
WRITE_STALL_MS_MAX = 30_000  # a client that accepts no byte for so long is disconnected
BROKER_BUFFER_BYTES_MAX = 256 * MIB  # of all connections: partly received frames, and answers in memory
UNRESERVED_READ_BYTES = 16 * KIB  # read from a connection before its frame is counted in the broker's buffers
TRANSFER_BYTES_PER_S_MIN = 64 * KIB  # slower transfers may not occupy the broker's buffers after WRITE_STALL_MS_MAX
TLS_RECORD_BYTES = 16 * KIB  # maximum plaintext in one record
TLS_SENT_RECORD_BYTES_MAX = TLS_RECORD_BYTES + 512  # one record with TLS overhead
TLS_HANDSHAKES_MAX = 1_024  # unfinished at once; beyond it the oldest is closed
TLS_HANDSHAKE_TURN_US_MAX = 2_000  # per turn of the event loop, for handshakes
TLS_LOOK_MS = 5_000  # interval of checks for changed certificate files
OPEN_FILES_ADVISED = 16_384  # with fewer, only few clients and streams fit at once
CONNECTION_FILES_SHARE = 2  # N: connections get 1/N of the file descriptors; the rest is for logs and answers
LOG_FILES_SHARE = 8  # N: logs may have 1/N of them open: each has two files, its segment and its checkpoint
ANSWER_FILES_SHARE = 4  # N: answers waiting for slow clients may have 1/N of them open

# Several brokers of one machine, under a supervisor
SUPERVISOR_RETRY_MS_MIN = 500  # before an exited broker is restarted; doubled each time
SUPERVISOR_RETRY_MS_MAX = 60_000
SUPERVISOR_STEADY_MS = 60_000  # a broker that ran for so long is restarted without backoff

# Raft
RAFT_VOTERS_MAX = 5  # every commit waits for a majority of them; further brokers are learners
RAFT_LEARNERS_MAX = 1_000
RAFT_ENTRY_BYTES_MAX = REQUEST_BODY_BYTES_MAX  # one command
RAFT_APPEND_BYTES_MAX = 1 * MIB  # entries in one message; one entry always fits
RAFT_APPEND_ENTRIES_MAX = 4_096
RAFT_MESSAGE_BYTES_MAX = 2 * MIB  # either of these, with the rest of the message
RAFT_IN_FLIGHT_MAX = 16  # unanswered append messages per follower
RAFT_UNCOMMITTED_BYTES_MAX = 16 * MIB  # proposed and not committed; beyond it the leader refuses
RAFT_ENTRY_OVERHEAD_BYTES = 64  # size of an entry besides its data, so that empty entries count, too
RAFT_APPLY_BYTES_MAX = 4 * MIB  # entries passed to the application at once
RAFT_KEPT_ENTRIES_MAX = 1_000  # kept in memory behind a snapshot: a follower with a smaller lag needs no snapshot
RAFT_SNAPSHOT_CHUNK_BYTES = 512 * KIB  # one message; heartbeats must not wait long behind it
RAFT_SNAPSHOT_BYTES_MAX = 1 * GIB  # a receiver holds it in memory
RAFT_READS_MAX = 4_096  # reads waiting for the leader's confirmation
RAFT_READ_CONTEXT_BYTES_MAX = 64
RAFT_ROUNDS_AHEAD_MAX = 2**24  # a term further ahead is invalid: elections are not that frequent

# Cluster
RAFT_TICK_MS = 100  # an election time-out is 10 to 19 ticks
DUPLICATE_PROCESS_MS = 1_000  # a process waits so long after the last sign of another one with the same broker id
METADATA_SAVE_MS = 2_000  # time-out of a save: the others have had time for an election, of 1.9 s
METADATA_INPUTS_WAITING_MAX = 4_096  # of this broker, while a save is running; further ones are refused
METADATA_INPUT_BYTES_WAITING_MAX = RAFT_UNCOMMITTED_BYTES_MAX
RAFT_MESSAGES_WAITING_MAX = 4_096  # from peers, while a save is running; further ones are dropped and sent again
RAFT_MESSAGE_BYTES_WAITING_MAX = 2 * RAFT_IN_FLIGHT_MAX * RAFT_APPEND_BYTES_MAX
METADATA_LOG_BYTES_MAX = 4 * MIB  # a larger log is replaced by a snapshot
FORWARDED_REQUESTS_MAX = 1_000  # client requests to change streams that this broker has forwarded
FORWARD_TIMEOUT_MS = 10_000  # for a change without its own time-out
FORWARD_RETRY_MS = 100
FORWARD_GRACE_MS = 1_000  # the metadata leader uses the same time-out, and its answer arrives a little later
TRUNCATION_TIMEOUT_MS = 15_000  # of a requested truncation: longer than the metadata leader's time-out
TRUNCATIONS_WAITING_MAX = 1_000  # per broker
PROMOTION_LAG_MAX = 100  # entries that a learner may lack to become a voter
METADATA_NO_CONTACT_MS = (
    10_000  # a broker whose full disk blocked a save, and that has received nothing since, polls again
)
METADATA_LEAVE_MS = 1_000  # a stopping broker waits so long for another metadata leader, and keeps requesting that
LEAVE_RETRY_MS = 20
METADATA_HAND_OVER_MS = 300_000  # between two handovers by a metadata leader on a full disk: each uses reserve
DISK_SPACE_PROBE_MS = 5_000  # interval of write tests on a full disk
DISK_SPACE_PROBE_BYTES = 1 * MIB  # the disk has room if it accepts this much
FLUSH_STALL_MS = 8_000  # time-out of a sync: others take over leadership, and nothing waits for this disk
FLUSH_INTERVAL_MS = 100  # interval of background syncs of replicated data

# Ingest
READ_BUFFER_BYTES = 1 * MIB  # one read of the NATS connection; larger messages extend it
PARTITION_IN_FLIGHT_BYTES_MAX = 64 * MIB  # appended, not yet acked
BROKER_IN_FLIGHT_BYTES_MAX = 256 * MIB  # beyond it the broker stops reading from NATS
NATS_WRITE_BUFFER_BYTES_MAX = 4 * MIB  # unsent answers in the connection's buffer; beyond it they queue by stream
NATS_WRITE_PAUSE_MS = 250  # nothing is read while answers queue, as long as nats-server accepts per such interval:
NATS_WRITE_PAUSE_BYTES_MIN = 4 * MIB  # some 16 MB/s; at most 6 MB/s if it throttles the broker
NATS_WRITE_PAUSES_MAX = 16  # intervals in a row: reading resumes after 4 s, before nats-server disconnects the broker
NATS_ANSWERS_SLICE_BYTES = 64 * KIB  # of one stream's answers, before the next stream gets its turn
NATS_STREAM_ANSWERS_BYTES_MAX = 16 * MIB  # of one stream; further answers are dropped, and publishers retry
NATS_ANSWERS_BYTES_MAX = 64 * MIB  # of all streams together
NATS_BURST_ANSWERS_BYTES_MAX = 256 * MIB  # the same while reading is paused: a stream in flight may cause 200 MiB
NATS_CONTROL_LINE_BYTES_MAX = 64 * KIB  # nats-server's default is 4 KiB but can be raised; INFO lists a whole cluster
NATS_REPLY_BYTES_MAX = 4 * KIB - 8  # nats-server's default for the longest line, less a space and a size
NATS_FRAME_BYTES_MAX = MESSAGE_BYTES_MAX  # payload and headers of one accepted message; a larger one is skipped
NATS_PAYLOAD_BYTES_MAX = 2**31 - 1  # nats-server's max_payload is an int32: a larger number is invalid
REFUSALS_GROWTH_MAX = 32  # maximum ratio of refusals to bytes read, for the shortest messages
REFUSAL_NAMES_CHARS_MAX = 256  # header names quoted in one refusal
REFUSALS_QUOTED_MAX = 64  # messages of one kind and read that are quoted in answers
UNDELIVERED_KINDS_TOLD_MAX = 32  # per partition: reasons why messages delivered by JetStream are not stored
NATS_ERROR_BYTES_MAX = 4 * KIB  # kept of a -ERR text, which repeats subjects and is otherwise unbounded
NATS_PING_INTERVAL_MS = 5_000  # closed after two PINGs without an answer, 10 to 15 s; a gap's start is known as exactly
LISTENED_BYTES_MAX = 16 * MIB  # of the file: 100,000 partitions take 2 MiB
LISTENED_INTERVAL_MS = 500  # interval of records of when the broker last listened: a gap after a kill begins there
NATS_BARRIERS_MAX = 10_000  # PINGs without a PONG yet
NATS_SUBSCRIBES_ASKED_MAX = 1_000  # unconfirmed subscriptions that are verified one by one
NATS_SUBSCRIBE_RETRY_MS = 10_000  # before a refused subscription is tried again
NATS_ABSENT_MS = 3_000  # a leader unsubscribed for so long hands over to another replica, if possible
NATS_REFUSED_MS = 600_000  # a broker refused by NATS is the last choice as leader of that partition for so long
NATS_CONNECT_TIMEOUT_MS = 5_000  # from the first SYN to the PONG after CONNECT
NATS_TLS_FIRST_MS = 1_000  # a tls:// server silent for so long expects a TLS handshake first
NATS_ANNOUNCED_MAX = 128  # cluster servers announced by nats-server that are remembered
NATS_RECONNECT_MS_MIN = 250
NATS_RECONNECT_MS_MAX = 5_000
NATS_OUTAGE_LOG_MS = 60_000  # interval of log lines about one outage
NATS_STEADY_MS = 5_000  # a connection that lived so long is replaced at once if it is lost
CLUSTER_LOG_INTERVAL_MS = 1_000  # interval of checks for cluster news for the log
CLUSTER_LOG_NAMES_MAX = 3  # partitions named in one line; further ones are counted
RATE_LIMITED_LOG_INTERVAL_MS = 10_000  # interval of log lines of one kind that remote parties can trigger

# Metrics
METRIC_PARTITIONS_MAX = 500  # with separate metrics: some 20 lines each; beyond it only sums
METRIC_GROUP_OFFSETS_MAX = 2_000  # the same for offsets of groups, two lines each
DISK_PROBE_TIMEOUT_MS = 2_000  # time-out of a disk check
HTTP_CONNECTIONS_MAX = 16  # few clients scrape a broker; each may hold one page
HTTP_HEAD_BYTES_MAX = 8 * KIB  # of a request
HTTP_PIECE_BYTES = 16 * KIB  # size of one read or write
HTTP_REQUESTS_MAX = 1_000  # per connection
HTTP_TIMEOUT_MS = 10_000  # time-out of a TLS handshake, of a request's head, and of sending the answer
METRIC_TURN = 64  # partitions processed before the event loop gets a turn

# Traces
TRACES_OPEN_MAX = 10_000  # messages waiting for their acks; further ones are not traced
TRACE_OPEN_MS = 60_000  # a trace not committed by then ends with an error
SPANS_WAITING_MAX = 16_384  # queued for the export thread; further ones are dropped

# Client
LEADERS_ASK_S = 2.0  # time-out of a leader's report on its streams; without it that is unknown
CLIENT_BROKERS_MAX = 1_000  # known to one client
CLIENT_PARTITIONS_MAX = 100_000  # with a cached leader; others are looked up again
CLIENT_CONNECTIONS_MAX = 64  # to different brokers, one each
CLIENT_LOGIN_BACKOFF_S = 10.0  # no login for so long to a broker whose proof failed: a password costs CPU time
CLIENT_CONNECTION_IDLE_S = 300.0  # an idle connection is closed after it, if there is another one
CLIENT_TIMEOUT_S_MAX = 366 * 24 * 3_600.0  # longer or infinite time-outs count as this one
CLIENT_SILENCE_S = 3.0  # a broker that owes an answer for so long is pinged
PUBLISHES_IN_FLIGHT_MAX = 4_096
PUBLISH_RETRIES_MAX = 100  # per message
PREFETCHED_FETCHES_MAX = 2
PUBLISH_ROUTES_MAX = 10_000  # subjects with a cached number of partitions
PUBLISH_ROUTE_S = 60.0  # lifetime of that cache: the stream may have changed
READ_FETCH_BYTES_MAX = 8 * MIB  # per request of a reader: each round trip costs idle time
READ_FETCH_BYTES_MIN = 256 * KIB
READ_FETCH_BYTES_FIRST = 1 * MIB  # before the response time is known
READ_FETCH_S = 0.25  # target response time: on a slow link a large answer would time out
READ_ROW_BYTES_GUESS = 1 * KIB  # assumed row size, so that a short range does not fetch megabytes for a few rows
RECEIVE_AT_ONCE_BYTES = 1 * MIB  # received per wake-up of a large answer: half the wake-ups, a fifth less CPU
TLS_RECEIVE_AT_ONCE_BYTES = 256 * KIB  # the same with TLS: what asyncio reads from the socket at once
READ_BATCH_ROWS_DEFAULT = 65_536  # rows per batch returned to a reader
COALESCED_BATCH_BYTES_MAX = 8 * MIB  # small batches are joined up to this size
DATA_WAIT_PARTITIONS_MAX = 16  # one connection holds all waits, including recently cancelled ones
DATA_WAIT_POLL_S = 0.1  # interval of polls if there are more partitions
DATA_WAIT_GRACE_S = 5.0  # for late answers of a broker
RANGE_BATCH_ROWS_MIN = 10_000  # for range readers: with batches of 500 rows Spark takes a quarter more CPU
RANGE_BATCH_BYTES_MAX = 64 * MIB  # beyond it a batch may have fewer rows
PAYLOAD_PREVIEW_BYTES = 64  # of a value in a message's repr
NOTEBOOK_ROWS_MAX = 100  # of a table in a notebook
READ_PARTITIONS_AT_ONCE_MAX = 16  # per reader: each may hold one answer
READ_WAIT_MS = 5_000  # long poll of a reader at the end of the log
READ_STALENESS_MS_DEFAULT = 10_000  # staler replicas are not read from, unless the reader allows it
REPAIR_WAIT_S = 5.0  # of a read for a range that its broker says it repairs; a repair takes a second or so
READ_REPLICA_S = 3.0  # beyond its wait, for a replica's answer; then the leader is asked
READ_REPLICAS_TRIED_MAX = 2  # per fetch, before the leader is asked
PARTITIONS_POLL_S = 3.0  # interval of checks for added partitions of a followed stream
DECODE_INFERRED_ROWS = 10_000  # values used to infer a schema
DECODE_INFERRED_BYTES = 64 * MIB  # held in memory for it: large values infer a schema from fewer rows
JSON_COLUMNS_MAX = 1_000  # fields of JSON objects that become columns
JSON_NESTED_FIELDS_MAX = 200  # below one column; an object with more of them is a map, and becomes text
JSON_DEPTH_MAX = 100  # of nested values; pyarrow's parser recurses, and crashes at some thousand
JSON_PARSED_ROWS_MAX = 2_000  # at once
JSON_PARSED_CELLS_MAX = 256 * MIB  # rows times bytes of them: if each row had fields of its own, so many cells
TAIL_PARTITIONS_MAX = 64  # followed at once, each by a thread
TAIL_MESSAGES_MAX = 10_000  # the last ones: they are sorted by time in memory
SQL_MEMORY_BYTES_DEFAULT = 1 * GIB  # of DuckDB; beyond it, it spills to a temporary folder
JSON_REPORT_NAMES_MAX = 20  # fields that a report counts by name

# Spark and lakes
LAKE_FILE_BYTES_DEFAULT = 128 * MIB  # target size of a data lake file
LAKE_FILE_BYTES_MIN = 64 * KIB
LAKE_FILE_BYTES_MAX = 4 * GIB
LAKE_ROW_GROUP_BYTES = 32 * MIB  # rows in memory: a task buffers so much for each file that it writes
LAKE_TASK_BUFFER_BYTES = 128 * MIB  # rows in memory: most that a task buffers for all its files
LAKE_FILES_OPEN_MAX = 64  # per task: days and streams written at once
CONNECT_TASKS_MAX = 4_096  # counted by a Spark Connect client
ICEBERG_SNAPSHOTS_KEPT = 50  # per archive as an Iceberg table; up to twice as many between two clean-ups
ICEBERG_SNAPSHOTS_EXPIRED_AT_ONCE = 500  # an archive of an earlier version has one snapshot per batch
ICEBERG_METADATA_FILES_MAX = 20  # metadata files besides the newest one, some 50 KB each
ICEBERG_MANIFESTS_MERGED = 50  # small manifests are merged from this number on
ARCHIVE_BATCH_ROWS_DEFAULT = 10_000_000  # archived at once, and repeated if a job dies: minutes
AUDIT_RANGE_ROWS_DEFAULT = 100_000  # offsets per checksum
AUDIT_GAPS_MAX = 1_000  # reported per range
ARCHIVE_THREADS = 4  # of `penstock archive`; a core each, and LAKE_TASK_BUFFER_BYTES
ARCHIVE_POLL_S = 0.2  # interval of checks for messages to archive
TABLE_BYTES_WAITING_MAX = 256 * MIB  # new rows buffered by a task before it reduces them to the latest of each key
TABLE_BUCKETS_DEFAULT = 16
TABLE_BUCKETS_MAX = 4_096
TABLE_BUCKET_BYTES_WARN = 256 * MIB  # of one bucket's file: merging holds its rows in memory a few times
TABLE_BATCH_ROWS_DEFAULT = 10_000_000  # messages per batch: each rewrites buckets, so few large ones cost least
TABLE_VACUUM_BATCHES = 20  # files of no kept version are deleted once in so many batches
REPLAY_BATCH_ROWS_DEFAULT = 1_000_000  # archived rows appended at once
REPLAY_MOVES_S = 60.0  # wait for an archiving job to move its committed files
REPLAY_BURST_S = 5  # with a rate limit, the burst in seconds
RUN_BATCH_ROWS_DEFAULT = 10_000_000  # messages per batch of a user's job
SINK_ROW_GROUP_BYTES = 32 * MIB  # rows in memory: buffered by a task for a file that it writes
JOB_POLL_S = 1  # interval of checks of a query's progress

# Bench
BENCH_POOL_BYTES_MAX = 64 * MIB  # distinct frames of one generator, encoded in advance; longer runs repeat them
BENCH_IN_FLIGHT_BYTES_MAX = 32 * MIB  # of a window, whatever it counts: half of a product's own limit
BENCH_MESSAGES_MAX = 2_000_000  # per round: its acks are kept, to be parsed after the clock has stopped
BENCH_MESSAGE_BYTES_MAX = 1_000_000  # nats-server takes 1 MiB by default, and it is the comparison
BENCH_PUBLISHERS_MAX = 256
BENCH_SECONDS_MAX = 180.0  # of sending in one round: the generator answers no PING, and nats-server waits 4 minutes
BENCH_LATENCY_SECONDS_MAX = 6 * 3600.0  # per round
BENCH_LATENCY_MESSAGES_MAX = 1_000_000  # per round: the times of each are kept
BENCH_RATE_MAX = 10_000.0  # messages per second that the sender can sustain
BENCH_CATCH_UP_BYTES_MAX = 100 * 1000**3
BENCH_STREAMS_MAX = 50_000
BENCH_LONG_MESSAGES_MAX = 200_000_000
BENCH_IDLE_SECONDS_MAX = 600.0
BENCH_STALL_S = 30.0  # a round without an ack or a message for so long has failed
BENCH_START_S = 30.0  # time-out for the start of a server or child process
BENCH_STOP_S = 10.0
BENCH_POLL_S = 0.5  # interval of checks that all measured processes still run
BENCH_END_S = 2.0  # time-out for the exit of a process whose connections are closed
BENCH_CHILD_LINES_MAX = 10_000  # of a child's output, kept until read
BENCH_ACK_BYTES = 192  # room for one ack; the buffer grows for larger ones
