"""Every size and queue that could grow has its limit here, by name, with the reason for the number."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Names and messages
STREAM_NAME_CHARS_MAX = 128  # with the stream id it must fit a directory name (255 bytes)
SUBJECT_BYTES_MAX = 1024  # nats-server's own control line is 4 KiB: subject, reply and sizes share it
HEADER_BLOCK_BYTES_MAX = 64 * KIB  # as JetStream (err_code 10097)
CORRELATION_ID_BYTES_MAX = 1024  # of an envelope: its ack repeats it, and waits with it for the disk
ENVELOPE_HEADERS_MAX = 1_000  # entries in the headers of one; with more it is stored as it came
KEY_BYTES_MAX = 32 * KIB  # a key is an identity, not a document
MESSAGE_BYTES_MAX = 64 * MIB  # a message is held whole in memory, several times; nats-server's default is 1 MiB
MESSAGE_BYTES_DEFAULT = 8 * MIB
OFFSET_MAX = 2**63 - 1
APPEND_AT_END_MAX = 2**53
"""Of offsets that are given: whoever reads JSON takes larger ones for others, and enough must be left to go on."""
RESTORE_VERIFY_BYTES_PER_S = 1 << 30
"""A stream that is compared with a backup is read no faster: nobody uses it yet."""
APPEND_AT_AHEAD_MS = 60_000
"""So far the times that are given may be ahead of the broker's clock: they are another machine's."""
TTL_S_MAX = 9_000_000_000  # some 285 years: with it a timestamp stays one
DEDUP_WINDOW_MS_DEFAULT = 120_000  # as JetStream
DEDUP_IDS_DEFAULT = 1_000_000  # message ids kept of one partition: some 250 MB, where publishers send so many
DEDUP_IDS_MAX = 10_000_000
MESSAGE_ID_KEY_BYTES_MAX = 65  # what an id is known by: itself, or a digest with a byte before it
MESSAGE_IDS_PER_ANSWER_MAX = 4_096  # told to the leader of a partition that was added: some 350 KiB
MESSAGE_IDS_READ_BYTES_MAX = 16 * MIB  # looked through for one such answer; a batch may pass it
MESSAGE_IDS_READ_BATCHES_MAX = 65_536  # the same, counted, those without ids too: of them the headers are read
MESSAGE_IDS_RUNNING_MAX = 2  # such answers at once
MESSAGE_IDS_WAITING_MAX = 1_024
MESSAGE_IDS_WAIT_MS = 2_000  # for one of them; meanwhile messages wait, and are refused then
LAST_OFFSETS_MAX = 100_000  # subjects of one partition whose last message is known: some 30 MB, if there are so many
LAST_OFFSETS_READ_BYTES_MAX = 64 * MIB  # read from the end of a log for them while its messages wait
PRODUCERS_MAX = 10_000  # known of one partition: some 10 MB; who appended longest ago is forgotten first
PRODUCER_BATCHES_KEPT = 5  # of each, as Kafka's: so many may be in flight at once
PRODUCER_WINDOW_MS = 600_000  # no retry comes later; a new leader reads the headers of so much of the log, once
STREAMS_MAX = 100_000
PARTITIONS_MAX = 100_000  # of all streams together: each costs a folder, a subscription and some memory
STREAM_PARTITIONS_MAX = 1_024  # of one stream
KEY_MAP_VERSIONS_MAX = 16  # how often a stream has had another number of partitions, the first one counted
QUEUE_GROUP_CHARS_MAX = 128  # of the name of a group that streams join
REPLICAS_MAX = 7  # of one partition: each further one is another copy to send and to wait for
REPLICAS_DEFAULT = 3  # where the cluster has so many brokers, whether they are there or not
OBSERVERS_MAX = 16  # of one partition: the leader sends each a copy, too

# Cluster
BROKERS_MAX = 1_000  # all of one cluster, also those that are away
ISR_CHANGES_PER_COMMAND_MAX = 4_096  # with the longest ISRs still a metadata command of half a mebibyte
ELECTIONS_PER_COMMAND_MAX = 4_096  # some 30 bytes each
LOG_ENDS_PER_HEARTBEAT_MAX = 4_096  # some 20 bytes each; the next heartbeat goes out at once where there are more
RECOVERIES_PER_COMMAND_MAX = 2_048  # some 30 bytes each with three replicas
RECOVERY_WAIT_MS = 5_000  # for the logs of those who were not in sync: they count, but need not
HEARTBEAT_MS = 500  # between two of a broker's to the metadata leader
HEARTBEAT_RETRY_MS = 20  # one that was just elected must have that saved before it answers
SESSION_MS = 3_000  # without a heartbeat, and a broker is taken for dead
READY_LOOK_MS = 50  # between two looks at whether a broker that has started has its part in the cluster
READY_LOG_MS = 1_000  # between two log lines that say what it waits for
HEARTBEATS_ANSWERED_MAX = 64  # whose answers wait for what was committed by then; more than there are in a session
HEARD_LATELY_MS = 1_500  # without one, and others are given what is to be led or held, where there are others
LEADER_REPORT_WINDOW_MS = 2_000  # reports of several followers that a leader is unreachable count together so long
PREFERRED_LEADER_STEADY_MS = 30_000  # in sync for so long, and a preferred leader leads again
PREFERRED_LEADER_INTERVAL_MS = 2_000  # between two looks at who could lead again
PREFERRED_ELECTIONS_MAX = 256  # at one look: each costs its publishers a moment
ISR_REQUESTS_WAITING_MAX = 64  # of one broker, while a command with its changes is under way

# Users
USERS_MAX = 10_000
USER_NAME_CHARS_MAX = 64
USER_RATE_MIN = 1 * KIB  # bytes a second; with less a program seems to hang
USER_RATE_MAX = 1 << 40
CREDENTIALS_PER_USER_MAX = 16
RULES_PER_USER_MAX = 256
SALT_BYTES = 16
PASSWORD_ITERATIONS = 600_000  # some 0.15 s of whoever tries a password; brokers do none of it
PASSWORD_ITERATIONS_MIN = 100_000  # a client answers no broker that asks for fewer: it may be none
PASSWORD_ITERATIONS_MAX = 10_000_000  # more would only keep a client busy
USERS_PER_ANSWER_MAX = 200
CLUSTER_SECRET_CHARS_MIN = 32
CLUSTER_SECRET_ITERATIONS = 10_000  # some 2 ms: of a secret that nobody has to remember
THROTTLE_MS_MAX = 60_000  # told at once; who comes back before his rate allows it is told again
AUDIT_ACTS_KEPT = 10_000  # remembered by each broker, until they are written; some 5 MB
AUDIT_ROWS_AT_ONCE = 1_000
AUDIT_AGE_MS = 366 * 24 * 3_600_000
AUDIT_SEGMENT_AGE_MS = 7 * 24 * 3_600_000
LOGIN_MESSAGE_BYTES_MAX = 4 * KIB
CREDENTIALS_FILE_BYTES_MAX = 4 * KIB

# Batches and segments
BATCH_ROWS_MAX = 65_536  # what one socket read delivers is far below
BATCH_BYTES_MAX = 128 * MIB  # Arrow's 32-bit value offsets end at 2 GiB; memory is the tighter bound
BATCH_ROWS_BYTES_MAX = 96 * MIB  # rows that a leader puts into one batch: with Arrow's own bytes below BATCH_BYTES_MAX
SEGMENT_BYTES_DEFAULT = 128 * MIB
SEGMENT_BYTES_MIN = 4 * KIB
SEGMENT_BYTES_MAX = 16 * GIB

# Log
SCAN_READ_BYTES = 1 * MIB  # one read while a segment is scanned
RESYNC_BYTES_MAX = 1 * GIB  # verified in vain in search of the next batch behind damage; false marks end there
UNINDEXED_BATCHES_MAX = 64  # of a log, that its index does not name: one flush in so many pays for it
UNINDEXED_BYTES_MAX = 8 * MIB  # the same, in bytes: a start after a crash scans so much
CHECKPOINT_SYNC_INTERVAL_MS = 1_000  # an older checkpoint costs a longer scan at the next start, nothing else
RETENTION_INTERVAL_MS = 1_000
MERGED_ROWS_MAX = 16_384  # the cleaner makes batches of up to so many rows
MERGED_BYTES_MAX = 8 * MIB  # and of so many bytes
MERGED_SHARE = 16  # but of no more than one in so many of a stream's max_bytes, which is exact to the batch
COMPRESSION_SAVING = 10  # what does not become smaller by one byte in so many is stored as it is
COMPRESSED_BATCH_BYTES_MIN = 4 * KIB  # smaller ones stay plain: unpacking sixteen buffers costs their reader more
CLEANING_SMALL_BATCH_BYTES = 64 * KIB  # larger ones, on average, are not worth it: 720 bytes are a hundredth of them
CLEANING_WINDOW_BYTES = 20 * MIB  # read for one merged batch: as many lone messages of 256 bytes as it takes, and more
CLEANING_SLICE_BYTES = 4 * MIB  # read and written before it lets others work
CLEANING_BYTES_PER_S_DEFAULT = 32 * MIB  # of one broker, read and written: a small part of what a disk can do
VERIFY_RANGE_OFFSETS = 65_536  # of which replicas are compared by one checksum: some 200 bytes in memory each
VERIFY_BYTES_PER_S_DEFAULT = 64 * MIB  # of each broker that is asked to: a part of what a disk can do
VERIFY_SLICE_BYTES = 4 * MIB  # read for one answer; one batch may pass it
VERIFY_SLICE_BATCHES = 256  # looked into for one answer: small ones take the interpreter some 50 µs each
VERIFY_JOINED_BATCHES = 128  # checksums are made of so many at once: each time costs some 0.1 ms
VERIFY_JOINED_BYTES = 1 * MIB  # or of so many bytes, or of one batch that is larger
VERIFY_REST_SHARE = 1  # after each answer a broker is left alone for so many times as long as that took
VERIFY_RUNNING_MAX = 1  # of one broker at once: the event loop gets its turn
VERIFY_WAITING_MAX = 64
VERIFY_AGAIN_MAX = 3  # looks at a segment in which something is wrong: a broker may have cut or cleaned it meanwhile
VERIFY_MISTAKES_MAX = 1_000  # places listed of one log; further ones are counted
VERIFY_ROWS_LISTED_MAX = 10  # offsets listed of one range in which replicas differ
COMPACTION_DIRTY_SHARE = 2  # a log is compacted once one byte in so many has come since the last time
COMPACTION_KEYS_MAX = 2_000_000  # noted in one pass; with more, the next one goes on
COMPACTION_KEY_BYTES_MAX = 128 * MIB  # the same of their bytes, with their offsets; it takes some six times as much
COMPACTION_ROWS_AT_ONCE = 1_000_000  # of those judged before, which are compared with all keys that are noted
COMPACTION_FORCED_BYTES_MAX = 8 * MIB  # keys of messages that stay only to cover offsets; with more, no tombstone goes
COMPACTION_FORCED_BYTES_EACH = 64  # of each such key beside its own
COMPACTION_PASSES_MAX = 256  # remembered until tombstones may go
COMPACTION_RETRY_MS = 60_000  # after a pass that came to nothing
TOMBSTONE_RETENTION_MS_DEFAULT = 24 * 3_600_000
EXPIRING_SEGMENTS_MAX = 10_000  # of one log, of which it is known when their next messages expire
EXPIRING_SEGMENT_AGE_MS = 3_600_000  # none grows for longer where messages may expire: only sealed ones are looked at
ROLLUP_PASSES_SHARE = 10  # passes over a log for rollups of subjects take one part of so many of the time, at most
ROLLUP_RETRY_MS = 1_000  # after one of all before a message that could not be seen to
CLEANED_KEEP_MS = 10_000  # a segment that was written anew stays so long: answers may be about to open it
LINEAGE_ENTRIES_MAX = 10_000  # leaderships that began below log_start are forgotten beyond it
LINEAGE_ENTRIES_READ_MAX = 100 * LINEAGE_ENTRIES_MAX  # some 24 MB; more in a file are not of leaderships
REBUILT_INDEX_BYTES_MAX = 32 * MIB  # per log: indexes that were lost and perhaps cannot be written; kept in memory
LOG_FILES_MAX = 1_024  # logs with an open file, unless the broker knows how many it may open
LOG_FILES_LOOKS_MAX = 64  # logs that are asked to close theirs, before a message has to wait
LOG_REST_MS = 30_000  # a log that took no message for so long gives back its file and what it holds in memory
UPKEEP_VISITS_MAX = 64  # logs that get their checkpoint, roll or retention in one turn of the event loop
UPKEEP_RETRY_MS = 1_000  # until that is tried again which failed
UPKEEP_TURN_MS = 5  # until the next turn, while more than that wait for theirs
IDENTITY_BYTES_MAX = 64 * KIB  # of penstock.json: some 200 bytes
CUT_FILES_MAX = 1_000  # side files of one place; recovery never overwrites one
DISK_THREADS_DEFAULT = 16  # of each kind of work; they wait, and so many streams sync at once: a slow disk needs them

# Connections between brokers
PEER_REQUESTS_MAX = 1_024  # open at one peer; Raft's messages count until they are taken
PEER_WRITE_QUEUE_BYTES_MAX = 32 * MIB  # requests that a peer has not taken yet; beyond it its connection is cut
PEER_BUFFER_BYTES_MAX = 256 * MIB  # as BROKER_BUFFER_BYTES_MAX, for peers: no client takes room from them
PEER_CONNECT_TIMEOUT_MS = 2_000  # until the socket is connected, the name looked up included
PEER_PING_MS = 1_000  # a peer that has said nothing for so long is asked who it is
PEER_SILENCE_MS_MAX = 5_000  # and is lost if it goes on saying nothing; both sides then close the connection
PEER_ANSWER_MS_MAX = 60_000  # one answer, not counted while enough of a large one comes: TRANSFER_BYTES_PER_S_MIN
PEER_SPEAK_MS = 2_500  # who receives a large answer says so often that it is there, or the other side takes it for dead
PEER_RECEIVED_MS = 100  # how often is told what has come of a large answer
PEER_STEADY_MS = 5_000  # a connection that lived so long is replaced at once when it is lost
PEER_RECONNECT_MS_MIN = 50  # after the first failure; each further one doubles it
PEER_RECONNECT_MS_MAX = 1_000
TAKEN_MS = 10_000  # refused for so long because another one bears its number, a broker that was started ends
PEER_COMPLAINT_INTERVAL_MS = 60_000  # between two log lines about what is wrong with one peer; it doubles
PEER_COMPLAINT_INTERVAL_MS_MAX = 3_600_000  # up to this, as long as the peer is away

# Replication
REPLICA_POSITIONS_MAX = 10_000  # named in one request: 44 bytes each at most, so they fit REQUEST_BODY_BYTES_MAX
REPLICA_NAMED_AT_ONCE = 1_000  # by this version: the leader's loop is held up for some 13 ms by so many
REPLICA_FETCH_BYTES = 8 * MIB  # of one answer to a follower; a batch may pass it, so that a large message gets through
REPLICA_ANSWER_MS = 1_000  # so long an answer may take to come: on a slow link less is asked for, as far as that goes
REPLICA_CATCH_UP_BYTES = 2 * MIB  # of them, for replicas that are not in sync, where others have news
REPLICA_SHARE_BYTES_MIN = 64 * KIB  # of one partition in an answer: less would be all requests and no data
REPLICA_MEMORY_BYTES_MAX = 64 * KIB  # a batch that is kept in memory until it is committed, for followers to be sent
REPLICA_RANGES_MAX = 128  # pieces of files in one answer; each holds one open until it is sent
REPLICA_FETCH_WAIT_MS = 500  # one long poll of a follower
REPLICA_FETCH_TIMEOUT_MS = 1_500  # a leader of whose answer nothing comes for so long is reported; polls take a third
REPLICA_NEWS_DELAY_MS = 10  # how long a new committed_end waits for data to travel with
REPLICA_RETRY_MS_MIN = 50  # after the first failure; each further one doubles it
REPLICA_RETRY_MS_MAX = 1_000
REPLICA_LAG_MS_MAX = 10_000  # a follower that has not had all for so long leaves the ISR
CATCH_UP_BYTES_PER_S_DEFAULT = 320 * MIB  # of one broker, for all its replicas that are not in sync
CATCH_UP_UNSYNCED_BYTES_MAX = 64 * MIB  # of them, that are not on the disk yet: a slow disk slows it down
SCRUB_BYTES_PER_S_DEFAULT = 8 * MIB  # of one broker: a TiB in a day and a half, and less than a tenth of a disk
SCRUB_BATCH_BYTES = 8 * KIB  # what a batch counts on top of its bytes: it takes as long as so many more
SCRUB_SLICE_BYTES = 1 * MIB  # read before others have their turn
SCRUB_INTERVAL_MS_DEFAULT = 24 * 3_600_000  # from the beginning of one pass over all logs to that of the next
SCRUB_INTERVAL_MS_MIN = 1_000
SCRUB_INTERVAL_MS_MAX = 365 * 24 * 3_600_000
SCRUB_FIRST_MS = 600_000  # the first one begins by then
REPAIR_BYTES_PER_S = 64 * MIB  # of one broker, read and written to mend what is damaged
REPAIR_RETRY_MS = 5_000  # after a damaged log could not be mended; each further time doubles it
REPAIR_RETRY_MS_MAX = 600_000
REPAIR_SOON_MS = 250  # after it was found to be in the ISR: the others are about to know of it
REPAIR_BYTES_AT_ONCE = 4 * MIB  # asked of another replica
JOIN_AWAITED_MS = 1_000  # commits wait so long at most for who keeps up, that it can join; once in REPLICA_LAG_MS_MAX
CATCH_UP_GAIN = 2  # times what their leaders get meanwhile: so each catches up, however much publishers bring
ISR_CHANGE_TIMEOUT_MS = 2_000  # a request to change ISRs that is not answered by then is asked again
ISR_RETRY_MS = 250  # after a change of an ISR was refused, or its answer was lost
KEYS_SETTLE_MS = 100  # after which what NATS servers still had for each other is there: before moved keys are taken
ISR_RETRY_SOON_MS = 50  # after whoever was asked did not lead the metadata: a leader may wait for that with all acks
PROCESS_ID_CHARS_MAX = 64  # what a start of a broker is known by
RUNS_MAX = 64  # starts of which nobody has heard yet; those beyond go by the name of the last
SHARED_ISRS_MAX = 1_024  # ISRs, and terms of commits, of which a broker keeps one for all partitions that have it

# Groups
GROUP_NAME_CHARS_MAX = 128  # as of a stream
OFFSETS_PARTITIONS = 16  # of the stream that holds offsets: groups are spread over so many leaders
OFFSETS_SEGMENT_BYTES = 16 * MIB  # of it: what has been replaced lies in few of them
OFFSETS_KEPT_MAX = 50_000  # that one partition of it keeps in memory, for all groups: some 30 MB, 75 with long notes
OFFSETS_PER_COMMIT_MAX = 1_024  # in one request: a stream has as many partitions
OFFSET_METADATA_CHARS_MAX = 256  # of the note beside an offset
GROUP_MEMBERS_MAX = 256  # a row of the log names all of them
GROUP_PARTITIONS_MAX = 4_096  # that the members of one group share: the same row, of some 60 KB then
GROUP_STREAMS_MAX = 64  # that a member reads
GROUP_SESSION_MS_MIN = 500
GROUP_SESSION_MS_MAX = 60_000  # a member of whom a new coordinator hears nothing keeps what it has for so long
GROUP_SESSION_MS_DEFAULT = 10_000
GROUPS_IN_USE_MAX = 1_000  # that have members, of one partition of the stream that holds offsets
PRODUCERS_PER_ANSWER_MAX = 1_000  # of one partition, in one page of a list
GROUP_STREAMS_PER_ANSWER_MAX = 4_096  # pairs of a group and a stream in one page of a list

# What is staged, and published as runs
STAGED_BYTES_MAX = 8 * GIB  # of one partition: what is staged beyond it pushes out what was staged first
STAGED_AGE_MS = 24 * 3_600_000  # then what was never published goes
STAGED_SEGMENT_BYTES = 64 * MIB  # retention takes whole segments
STAGED_SEGMENT_AGE_MS = 3_600_000
PIECE_BYTES_MAX = 32 * MIB  # of the rows of one piece, as a client cuts them; a single staged batch may be larger
STAGED_PER_PIECE_MAX = 4_096  # staged batches that one request names: some 100 KB
PUBLISHED_WINDOW_MS = (
    7 * 24 * 3_600_000
)  # as Kafka's transactional ids: so long a query is known that publishes nothing
PUBLISHED_QUERIES_MAX = 10_000  # known of one partition: some 5 MB; that which published longest ago goes first
PUBLISHED_ONCE_MAX = 1_000  # beside them, by who publishes one batch and no more: to know a request that comes again
PUBLISHED_PER_ANSWER_MAX = 1_000  # of one partition, in one page of a list
PUBLISHES_WAITING_MAX = 1_024  # requests of one broker; those beyond are refused
PUBLISHES_AT_WORK_MAX = 2  # being put together at once: each takes the memory of its piece a few times
PUBLISH_WAIT_MS = 5_000  # for what was staged to be committed here; who asked then asks again

# Memory
FREED_BYTES_MAX = 32 * MIB  # what the C library keeps of freed memory: a few reads, their batches and their acks
FREED_PIECE_BYTES_MAX = 16 * MIB  # larger pieces go back to the kernel at once

# Archives
ARCHIVES_MAX = 8  # of one stream; the metadata name each for each partition
ARCHIVE_NAME_CHARS_MAX = 64

# Socket API
HELLO_BYTES_MAX = 4 * KIB  # before a client has said who it is, it gets no more memory than this
REQUEST_BODY_BYTES_MAX = 1 * MIB
APPEND_BYTES_MAX = 65 * MIB  # raw bytes behind the body of one append: the longest message, with Arrow's own bytes
RESPONSE_BYTES_MAX = 256 * MIB
FETCH_BYTES_DEFAULT = 4 * MIB
JOINED_ANSWER_BYTES_MAX = 64 * KIB  # whose raw part goes out in one piece with its head
SENDFILE_SLICE_BYTES = 512 * KIB  # some 160 µs of the loop; half of it costs a tenth more CPU, twice it no less
FETCH_BYTES_MAX = 64 * MIB  # a fetch may pass it by one batch, so that a large message always gets through
FETCH_WAIT_MS_MAX = 60_000
FETCH_SUBJECTS_MAX = 64  # patterns of one fetch
PROJECTIONS_RUNNING_MAX = 2  # fetches of some columns, or of some subjects: as many threads look through batches
PROJECTIONS_WAITING_MAX = 1_024
PROJECTED_SOURCE_BYTES_MAX = 64 * MIB  # looked through for one of them, unpacked; a batch may pass it
PROJECTED_BYTES_MAX = 16 * MIB  # of one such answer, which is held in memory; a batch may pass it
PROJECTED_PIECE_BYTES = 512 * KIB  # read at once: lone messages of that size hold up the loop for 1 ms
PROJECTED_PIECE_BYTES_MAX = 8 * MIB  # the same of large batches, unless one alone is larger
CONNECTIONS_MAX = 10_000  # of clients; those of other brokers come on top
STRANGERS_MAX = 64  # beyond them, that have not said yet that they are brokers
STRANGERS_SHARE = 8  # with fewer connections: one in so many, for they hold files open, too
UNKNOWN_PEERS_MIN = 16  # brokers that are connected and not registered, at least: a cluster that forms has five voters
METADATA_STREAMS_MAX = 1_000  # streams in one page of metadata
METADATA_PARTITIONS_MAX = 4_096  # partitions of them, unless the first stream alone has more: 50 ms of the loop
QUERIES_RUNNING_MAX = 3  # get and list offsets; a few threads' worth, so that the event loop gets its turn
SEARCHES_RUNNING_MAX = 1  # of them, by key or subject: they read up to SCAN_BYTES_MAX each
QUERIES_WAITING_MAX = 4_096
SCAN_BYTES_MAX = 1 * GIB  # one search from the end of the log
IN_FLIGHT_REQUESTS_MAX = 256  # per connection; further frames stay in the socket
WRITE_QUEUE_BYTES_MAX = 128 * MIB  # answers that wait for one connection; beyond it no request is read
REQUESTS_PER_TURN_MAX = 64  # of all connections, in one turn of the event loop: acks do not wait for more than that
REQUEST_TURN_US_MAX = 2_000  # the same, as a time; a single request may take longer
HELLO_TIMEOUT_MS = 5_000  # from the accept to the whole of it
LOGIN_TIMEOUT_MS = 15_000  # from the accept to the end of a login: a slow machine takes its time with a password
UNKNOWN_SHARE = 4  # of the connections one in so many may be of who has not logged in yet; then the oldest gives way
LOGIN_COMPLAINT_INTERVAL_MS = 10_000  # between two log lines about logins that failed
WRITE_QUEUE_PARTS_MAX = 256  # the same, counted: a part of a file holds it open
WRITE_STALL_MS_MAX = 30_000  # a client that takes no byte for so long is cut off
BROKER_BUFFER_BYTES_MAX = 256 * MIB  # of all connections: half-received frames, and answers that are held in memory
SMALL_BUFFER_BYTES_MAX = 1 * MIB  # larger ones leave a quarter of the broker's buffers to those up to here
UNRESERVED_READ_BYTES = 16 * KIB  # read from a connection before its frame has its place in the broker's buffers
TRANSFER_BYTES_PER_S_MIN = 64 * KIB  # slower, after WRITE_STALL_MS_MAX, nobody may fill or empty the broker's buffers
TLS_RECORD_BYTES = 16 * KIB  # of a text, at most, in one record
TLS_SENT_RECORD_BYTES_MAX = TLS_RECORD_BYTES + 512  # the same record with all that TLS adds
TLS_SLICE_BYTES = 256 * KIB  # encrypted in one turn, where the kernel does not do it: SENDFILE_SLICE_BYTES costs twice
TLS_HANDSHAKES_MAX = 1_024  # unfinished at once: then the oldest gives way
TLS_HANDSHAKE_TURN_US_MAX = 2_000  # of one turn of the event loop, for handshakes
TLS_CONNECTION_BYTES = 64 * KIB  # what OpenSSL and Python hold for one, at most
TLS_CONNECTIONS_BYTES_MAX = 256 * MIB  # of all connections: so many of them are taken
TLS_LOOK_MS = 5_000  # between two looks whether the files of a certificate have changed
TLS_EXPIRY_TOLD_MS = 14 * 86_400_000  # before the end of a certificate, the log begins to tell of it
TLS_EXPIRY_TOLD_AGAIN_MS = 86_400_000
TLS_FILE_BYTES_MAX = 4 * MIB  # of certificates: those that a system trusts are 250 KiB
CONNECTION_FILES_SHARE = 2  # connections get one file descriptor in so many; the others are for logs and answers
LOG_FILES_SHARE = 8  # logs with open files: one in so many; each has two, its segment and its checkpoint
ANSWER_FILES_SHARE = 4  # files that are open because a client has not taken its answer yet: one in so many

# Several brokers of one machine, under a supervisor
SUPERVISOR_RETRY_MS_MIN = 500  # until a broker that has ended is started again; twice as long each time
SUPERVISOR_RETRY_MS_MAX = 60_000
SUPERVISOR_STEADY_MS = 60_000  # a broker that ran for so long is started again as if it had never ended before
SUPERVISOR_ORDER_MS = 20_000  # brokers of one machine stop one after the other; those left then, all at once
SUPERVISOR_STOP_MS = 10_000  # a broker that was told to stop has ended by itself by then, or is killed
SUPERVISOR_HELD_LINES_MAX = 200  # of the log of a broker that does not start for the reason that was told before
SUPERVISOR_LINE_BYTES_MAX = 64 * KIB  # of a broker's log: what is longer is cut
SUPERVISOR_CONFIG_BYTES_MAX = MIB

# Raft
RAFT_VOTERS_MAX = 5  # every commit waits for most of them; further brokers are learners
RAFT_LEARNERS_MAX = 1_000
RAFT_ENTRY_BYTES_MAX = REQUEST_BODY_BYTES_MAX  # one command
RAFT_APPEND_BYTES_MAX = 1 * MIB  # entries in one message; one entry always fits
RAFT_APPEND_ENTRIES_MAX = 4_096
RAFT_MESSAGE_BYTES_MAX = 2 * MIB  # either of these, with all that is around the entries
RAFT_IN_FLIGHT_MAX = 16  # messages with entries that one follower has not answered
RAFT_UNCOMMITTED_BYTES_MAX = 16 * MIB  # proposed and not committed; beyond it the leader refuses
RAFT_ENTRY_OVERHEAD_BYTES = 64  # what an entry costs besides its data: an empty one is not free either
RAFT_APPLY_BYTES_MAX = 4 * MIB  # entries that the application is handed at once
RAFT_KEPT_ENTRIES_MAX = 1_000  # behind a snapshot, in memory: who lags less than that needs no snapshot
RAFT_SNAPSHOT_CHUNK_BYTES = 512 * KIB  # one message; heartbeats must not wait long behind it
RAFT_SNAPSHOT_BYTES_MAX = 1 * GIB  # a receiver holds it in memory
RAFT_READS_MAX = 4_096  # reads that wait for a leader's confirmation
RAFT_READ_CONTEXT_BYTES_MAX = 64
RAFT_ROUNDS_AHEAD_MAX = 2**24  # a term beyond it is no term: elections do not come that often

# Cluster
RAFT_TICK_MS = 100  # an election timeout is 10 to 19 of them
RIVAL_MS = 1_000  # since a process of a broker was heard: another one of the same number waits so long
METADATA_SAVE_MS = 2_000  # one that has not come back by then: the others have had time for an election, of 1.9 s
METADATA_INPUTS_WAITING_MAX = 4_096  # of this broker, while a save is under way; what does not fit is refused
METADATA_INPUT_BYTES_WAITING_MAX = RAFT_UNCOMMITTED_BYTES_MAX
RAFT_MESSAGES_WAITING_MAX = 4_096  # of peers, while a save is under way; what does not fit is sent again
RAFT_MESSAGE_BYTES_WAITING_MAX = 2 * RAFT_IN_FLIGHT_MAX * RAFT_APPEND_BYTES_MAX
METADATA_LOG_BYTES_MAX = 4 * MIB  # a larger log gives way to a snapshot
FORWARDED_REQUESTS_MAX = 1_000  # changes of streams that clients have asked this broker for and wait for
FORWARD_TIMEOUT_MS = 10_000  # of a change that names no time itself
FORWARD_RETRY_MS = 100
FORWARD_GRACE_MS = 1_000  # a metadata leader that was asked keeps to the same time, and answers a little later
TRUNCATION_TIMEOUT_MS = 15_000  # of one that was asked for: longer than the metadata leader is given
TRUNCATIONS_WAITING_MAX = 1_000  # on one broker
PROMOTION_LAG_MAX = 100  # entries that a learner may lack when it becomes a voter
METADATA_UNTOLD_MS = 10_000  # whose full disk could not save what it was told, and is told nothing since, asks again
METADATA_LEAVE_MS = 1_000  # who is about to stop waits so long for another metadata leader, and asks it so long
LEAVE_RETRY_MS = 20
METADATA_HAND_OVER_MS = 300_000  # between two that a metadata leader on a full disk asks for: each costs some reserve
ROOM_LOOK_MS = 5_000  # a disk that took nothing is tried again
ROOM_LOOK_BYTES = 1 * MIB  # and has room if it takes so much
FLUSH_STALL_MS = 8_000  # a sync that has not come back by then: others lead, and nobody waits for this disk
FLUSH_INTERVAL_MS = 100  # what several replicas have is synced in the background so often

# Ingest
READ_BUFFER_BYTES = 1 * MIB  # one read of the NATS connection; larger messages grow it
PARTITION_IN_FLIGHT_BYTES_MAX = 64 * MIB  # appended, not yet acked
BROKER_IN_FLIGHT_BYTES_MAX = 256 * MIB  # beyond it the broker stops reading NATS
NATS_WRITE_BUFFER_BYTES_MAX = 4 * MIB  # answers in the connection's buffer; beyond it they wait by stream, as follows
NATS_WRITE_PAUSE_MS = 250  # nothing is read while answers wait, as long as nats-server takes so many in each such time:
NATS_WRITE_PAUSE_BYTES_MIN = 4 * MIB  # some 16 MB/s, whereas 6 MB/s are the most when it holds us up
NATS_WRITE_PAUSES_MAX = 16  # such times in a row: after 4 s it is read on, before nats-server cuts the broker off
NATS_ANSWERS_SLICE_BYTES = 64 * KIB  # of one stream's, before the next has its turn
NATS_STREAM_ANSWERS_BYTES_MAX = 16 * MIB  # of one stream; what is over is dropped, and its publishers publish again
NATS_ANSWERS_BYTES_MAX = 64 * MIB  # of all streams together
NATS_BURST_ANSWERS_BYTES_MAX = 256 * MIB  # the same, while nothing is read: a stream in flight may make 200
NATS_CONTROL_LINE_BYTES_MAX = 64 * KIB  # nats-server's default is 4 KiB but can be raised; INFO lists a whole cluster
NATS_FRAME_BYTES_MAX = MESSAGE_BYTES_MAX  # payload and headers of one message that is taken; a larger one is skipped
NATS_PAYLOAD_BYTES_MAX = 2**31 - 1  # nats-server's max_payload is an int32: a larger number is nonsense
REFUSALS_GROWTH_MAX = 32  # times what was read: the most that its refusals come to, all of the shortest messages
REFUSALS_QUOTED_MAX = 64  # of one kind and one read: messages that are quoted to those who sent them
NATS_ERROR_BYTES_MAX = 4 * KIB  # what is kept of the text of a -ERR: it repeats subjects, which have no other bound
NATS_PING_INTERVAL_MS = 5_000  # silence after two of them ends a connection; a gap's start is known as exactly
NATS_BARRIERS_MAX = 10_000  # PINGs whose PONG has not come
NATS_SUBSCRIBES_ASKED_MAX = 1_000  # subscriptions that are asked for one by one and not yet confirmed
NATS_SUBSCRIBE_RETRY_MS = 10_000  # a subscription that nats-server refused is asked for again
NATS_ABSENT_MS = 3_000  # a leader that is not subscribed for so long has another replica lead, if that may be
NATS_REFUSED_MS = 600_000  # whom NATS refused a subscription leads that partition only after all others for so long
NATS_CONNECT_TIMEOUT_MS = 5_000  # from the first SYN to the PONG after CONNECT
NATS_TLS_FIRST_MS = 1_000  # a tls:// server that says nothing for so long waits for TLS itself
NATS_RECONNECT_MS_MIN = 250
NATS_RECONNECT_MS_MAX = 5_000
NATS_OUTAGE_LOG_MS = 60_000  # between two log lines that say the same of one outage
NATS_STEADY_MS = 5_000  # a connection that lived so long is replaced at once when it is lost
NATS_SERVER_PENDING_BYTES_MAX = 256 * MIB  # what the embedded nats-server keeps for one client that reads slowly
NATS_SERVER_WRITE_DEADLINE_MS = 60_000
NATS_SERVER_START_MS = 10_000
NATS_SERVER_STOP_MS = 5_000
NEWS_INTERVAL_MS = 1_000  # between two looks at what is news of the cluster, for the log
NEWS_NAMES_MAX = 3  # partitions that such a line names; the others are counted
COMPLAINT_INTERVAL_MS = 10_000  # between two log lines of one kind that somebody else can cause

# Metrics
METRIC_PARTITIONS_MAX = 500  # told one by one on a page of metrics: some 20 lines each; of more only sums
METRIC_GROUP_OFFSETS_MAX = 2_000  # the same of offsets of groups, two lines each
METRIC_TURN_US = 1_000  # so long a page is made before the event loop has another turn; one metric may take longer
LOOP_LAG_INTERVAL_MS = 200  # between two looks at how late the event loop is
DISK_LOOK_MS = 2_000  # a disk that has not answered by then does not answer
HTTP_CONNECTIONS_MAX = 16  # who looks at a broker is one or two; each may hold one page
HTTP_HEAD_BYTES_MAX = 8 * KIB  # of a request
HTTP_READ_BYTES = 16 * KIB  # at once
HTTP_REQUESTS_MAX = 1_000  # on one connection
HTTP_PATIENCE_MS = 10_000  # for the head of a request, and for the answer to be taken
METRIC_TURN = 64  # partitions looked at for it before the event loop may have another turn

# Traces
TRACES_OPEN_MAX = 10_000  # messages on the way to their acks; further ones are not traced
TRACED_PER_READ_MAX = 1_000  # of one stream: the loop is held up for some 10 ms by so many
TRACE_OPEN_MS = 60_000  # what is not committed by then ends with an error
SPANS_WAITING_MAX = 16_384  # for the thread that exports them; further ones are dropped
SPANS_AT_ONCE_MAX = 512  # in one request
OTLP_TIMEOUT_S = 10  # for one request, with what is tried again
OTLP_STOP_S = 1.0  # for what is left when the broker stops

# Client
LEADERS_ASK_S = 2.0  # that a leader has to say what its streams hold; without it that is not known
CLIENT_BROKERS_MAX = 1_000  # that a client knows of
CLIENT_PARTITIONS_MAX = 100_000  # whose leader it knows; those beyond are asked for again
CLIENT_CONNECTIONS_MAX = 64  # to as many brokers at once
CLIENT_CONNECTION_IDLE_S = 300.0  # one that is not used for so long is given back, if there is another
CLIENT_SILENCE_S = 3.0  # a broker of a cluster that owes an answer for so long is asked whether it lives
PUBLISHES_IN_FLIGHT_MAX = 4_096
PUBLISH_RETRIES_MAX = 100  # of one message
PREFETCHED_FETCHES_MAX = 2
PUBLISH_ROUTES_MAX = 10_000  # subjects of which a client knows how many partitions they have
PUBLISH_ROUTE_S = 60.0  # then it asks again: the stream may be another one by now
READ_FETCH_BYTES_MAX = 8 * MIB  # what a reader asks for at once: a request for each costs time in which nothing is sent
READ_FETCH_BYTES_MIN = 256 * KIB
READ_FETCH_BYTES_FIRST = 1 * MIB  # before it is known how quickly answers come
READ_FETCH_S = 0.25  # so long an answer should take: on a slow link a large one would not come within its time-out
READ_ROW_BYTES_GUESS = 1 * KIB  # so a short range does not bring megabytes of which a few rows are wanted
RECEIVE_AT_ONCE_BYTES = 1 * MIB  # of a large answer, as much comes at one wake-up: half the wake-ups, a fifth less CPU
TLS_RECEIVE_AT_ONCE_BYTES = 256 * KIB  # the same through TLS: what asyncio takes from the socket at once
READ_BATCH_ROWS_DEFAULT = 65_536  # rows of one batch that a reader is handed
COALESCED_BATCH_BYTES_MAX = 8 * MIB  # small batches are copied together up to this size
GROWTH_PARTITIONS_MAX = 16  # one connection holds the waits of all, also those that were given up a moment ago
GROWTH_LOOK_S = 0.1  # between two looks where there are more
GROWTH_GRACE_S = 5.0  # for a broker that answers late
RANGE_BATCH_ROWS_MIN = 10_000  # of a reader of a range: with batches of 500 rows Spark takes a quarter more CPU
RANGE_BATCH_BYTES_MAX = 64 * MIB  # beyond it a batch may have fewer rows
PAYLOAD_PREVIEW_BYTES = 64  # of a value in a message's repr
READ_PARTITIONS_AT_ONCE_MAX = 16  # of one reader: each may hold one answer
READ_WAIT_MS = 5_000  # one long poll of a reader at the end of the log
READ_STALENESS_MS_DEFAULT = 10_000  # a replica that may lack more is not read from, unless the reader says otherwise
READ_REPLICA_S = 3.0  # beyond its wait, for an answer of a replica: then its leader is asked
READ_REPLICAS_TRIED_MAX = 2  # for one fetch, before its leader is asked
PARTITIONS_LOOK_S = 3.0  # between two looks at whether a stream that is followed has got more partitions

# Spark and lakes
LAKE_FILE_BYTES_DEFAULT = 128 * MIB  # a file of a lake is about so large, where so much is archived at once
LAKE_FILE_BYTES_MIN = 64 * KIB
LAKE_FILE_BYTES_MAX = 4 * GIB
LAKE_ROW_GROUP_BYTES = 32 * MIB  # of rows in memory: a task holds so much of each file that it writes
LAKE_FILES_OPEN_MAX = 64  # of one task: days and streams that it writes at once
ARCHIVE_BATCH_ROWS_DEFAULT = 10_000_000  # archived at once, and again if a job dies: minutes
DECODE_INFERRED_ROWS = 10_000  # values by which a schema is inferred
AUDIT_RANGE_ROWS_DEFAULT = 100_000  # offsets that have one checksum
AUDIT_GAPS_MAX = 1_000  # told of one such range
ARCHIVE_LOOK_S = 0.2  # between two looks at whether there is something to archive
TABLE_BYTES_WAITING_MAX = 256 * MIB  # new rows that a task holds before it keeps the latest of each key
TABLE_BUCKETS_DEFAULT = 16
TABLE_BUCKETS_MAX = 4_096
TABLE_BUCKET_BYTES_WARN = 256 * MIB  # of one bucket's file: whoever merges it holds its rows a few times
TABLE_BATCH_ROWS_DEFAULT = 10_000_000  # messages of one batch: each writes buckets anew, so few large ones cost least
TABLE_VACUUM_BATCHES = 20  # files that no kept version needs are deleted once in so many batches
REPLAY_BATCH_ROWS_DEFAULT = 1_000_000  # rows of an archive that are appended at once
REPLAY_MOVES_S = 60.0  # for a job that archives to move the files that it has committed
REPLAY_BURST_S = 5  # with a rate, what is allowed in so long comes at once
RUN_BATCH_ROWS_DEFAULT = 10_000_000  # messages of one batch of a user's own job
SINK_ROW_GROUP_BYTES = 32 * MIB  # of rows in memory: a task that writes a file holds so much of it
JOB_LOOK_S = 1  # between two looks at how far a query is

# Bench
BENCH_POOL_BYTES_MAX = 64 * MIB  # distinct frames of one generator, encoded beforehand; a longer run repeats them
BENCH_IN_FLIGHT_BYTES_MAX = 32 * MIB  # of a window, whatever it counts: half of what a product takes before it refuses
BENCH_MESSAGES_MAX = 2_000_000  # of one round: its acks are kept, to be parsed when the clock has stopped
BENCH_MESSAGE_BYTES_MAX = 1_000_000  # nats-server takes 1 MiB by default, and that is what stands beside us
BENCH_PUBLISHERS_MAX = 256
BENCH_SECONDS_MAX = 180.0  # of sending in one round: the generator answers no PING of nats-server, who waits 4 minutes
BENCH_LATENCY_SECONDS_MAX = 6 * 3600.0  # of one round
BENCH_LATENCY_MESSAGES_MAX = 1_000_000  # of one round: the moments of each are kept
BENCH_RATE_MAX = 10_000.0  # messages a second that the sender can keep to
BENCH_CATCH_UP_BYTES_MAX = 100 * 1000**3
BENCH_STREAMS_MAX = 50_000
BENCH_LONG_MESSAGES_MAX = 200_000_000
BENCH_IDLE_SECONDS_MAX = 600.0
BENCH_STALL_S = 30.0  # a round without an ack or a message for so long has failed
BENCH_START_S = 30.0  # a server or a child of ours is ready by then, or has failed
BENCH_STOP_S = 10.0
BENCH_LOOK_S = 0.5  # between two looks at whether all that is measured still runs
BENCH_END_S = 2.0  # a process whose connections are cut has ended by then, or has not
BENCH_CHILD_LINES_MAX = 10_000  # of a child's output, kept until somebody asks
BENCH_ACK_BYTES = 192  # room for one ack; the buffer grows if a product says more
