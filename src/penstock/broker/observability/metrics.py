"""Table of the metrics outside the node: the process, NATS, clients, the disk, the event loop."""

from __future__ import annotations

from penstock.base.meters import Metric, MetricKind
from penstock.broker.observability import consumer_metrics

_US = 1e-6
_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

BUILD_INFO = Metric(
    "penstock_build_info",
    _GAUGE,
    "1; the labels describe the running program.",
    ("version", "python", "hot_path", "broker"),
)
READY = Metric("penstock_ready", _GAUGE, "1 if /readyz reports ready.")
CPU_SECONDS = Metric("process_cpu_seconds_total", _COUNTER, "CPU time of the process, in user and in system mode.")
RESIDENT_BYTES = Metric("process_resident_memory_bytes", _GAUGE, "Resident memory.")
OPEN_FILES = Metric("process_open_fds", _GAUGE, "Open file descriptors.")
OPEN_FILES_MAX = Metric("process_max_fds", _GAUGE, "Maximum number of open file descriptors.")
START_SECONDS = Metric("process_start_time_seconds", _GAUGE, "When the broker was started (Unix time).", scale=_US)
LOOP_LAG_SECONDS = Metric(
    "penstock_loop_lag_seconds", _HISTOGRAM, "How late a timer of the event loop is, five times a second.", scale=_US
)
DISK_ANSWERS = Metric("penstock_disk_answers", _GAUGE, "1 if the disk threads answered while this page was made.")
DISK_FREE_BYTES = Metric("penstock_disk_free_bytes", _GAUGE, "Free bytes on the file system of the data directory.")
DISK_SIZE_BYTES = Metric("penstock_disk_size_bytes", _GAUGE, "Size of that file system in bytes.")
DISK_WORK = Metric("penstock_disk_work", _GAUGE, "Disk tasks that have not completed.")
NATS_CONNECTED = Metric("penstock_nats_connected", _GAUGE, "1 if every subscription is confirmed.")
NATS_DISCONNECTS = Metric("penstock_nats_disconnects_total", _COUNTER, "Connections to NATS that were lost.")
NATS_ANSWERS_DROPPED = Metric(
    "penstock_nats_answers_dropped_total", _COUNTER, "Acks and refusals that nats-server did not take in time."
)
NATS_MESSAGES_SKIPPED = Metric(
    "penstock_nats_messages_skipped_total",
    _COUNTER,
    "Messages from nats-server that could not be parsed and are not stored.",
)
NATS_UNANSWERABLE = Metric(
    "penstock_nats_unanswerable_total", _COUNTER, "Messages without an ack: nats-server refuses their reply subjects."
)
NATS_PAUSED = Metric(
    "penstock_nats_reading_paused", _GAUGE, "1 if reading is paused (backpressure): too many bytes are in flight."
)
NATS_WRITE_BYTES = Metric("penstock_nats_write_buffer_bytes", _GAUGE, "Bytes that nats-server has not taken yet.")
LEAF_UP = Metric(
    "penstock_leaf_up", _GAUGE, "1 if subscribers get deliveries over the leaf connection; if there is one."
)
LEAF_PENDING_BYTES = Metric(
    "penstock_leaf_pending_bytes", _GAUGE, "Bytes of deliveries that nats-server has not taken yet."
)
LEAF_UNDELIVERED = Metric(
    "penstock_leaf_undelivered_total", _COUNTER, "Batches of deliveries that the leaf connection did not take."
)
LEAF_SUBJECTS = Metric(
    "penstock_leaf_interest_subjects",
    _GAUGE,
    "Subjects with interest that nats-server has told the leaf connection of.",
)
API_SERVED = Metric("penstock_jetstream_api_served", _GAUGE, "1 if JetStream's API is served here.", ("prefix",))
API_DECISION = Metric(
    "penstock_jetstream_api_decision",
    _GAUGE,
    "1: what the cluster has decided on JetStream's API: `taken`, `waiting`, or `withdrawn` from another service.",
    ("prefix", "state"),
)
API_REQUESTS = Metric("penstock_jetstream_api_requests_total", _COUNTER, "Requests to JetStream's API.", ("operation",))
API_ERRORS = Metric(
    "penstock_jetstream_api_errors_total", _COUNTER, "Those that were answered with an error, by its `err_code`.",
    ("operation", "code"),
)  # fmt: skip
API_SECONDS = Metric(
    "penstock_jetstream_api_seconds", _HISTOGRAM,
    "From when such a request is looked at, by the broker that answers, until its answer; of batches until their end.",
    ("operation",), _US,
)  # fmt: skip
API_OPEN = Metric("penstock_jetstream_api_requests_open", _GAUGE, "Those that are not answered yet.")
READERS = Metric(
    "penstock_jetstream_readers",
    _GAUGE,
    "Consumers of JetStream's API at this broker: of the streams that it leads.",
    ("kind",),
)
READER_PULLS = Metric("penstock_jetstream_pulls_waiting", _GAUGE, "Their pull requests that wait for messages.")
READER_DELIVERIES = Metric("penstock_jetstream_deliveries_total", _COUNTER, "Messages that they were sent.")
READER_BYTES = Metric(
    "penstock_jetstream_delivered_bytes_total",
    _COUNTER,
    "Bytes that they were sent over the leaf connection, with subjects, headers and status messages.",
)
LETTERS_WAITING = Metric(
    "penstock_jetstream_dead_letters_waiting",
    _GAUGE,
    "Messages that consumers led here have given up, and whose dead letters are not stored yet.",
)
LETTERS = Metric(
    "penstock_jetstream_dead_letters_total",
    _COUNTER,
    "Dead letters of consumers led here: `stored`, and attempts that `failed`.",
    ("result",),
)
READER_TOO_LARGE = Metric(
    "penstock_jetstream_too_large_total",
    _COUNTER,
    "Messages that they were sent without the value, because it is above nats-server's max_payload.",
)
CONNECTIONS = Metric("penstock_connections", _GAUGE, "Connections over the socket API.", ("of",))
CONNECTIONS_MAX = Metric("penstock_connections_max", _GAUGE, "Maximum number of client connections.")
BUFFER_BYTES = Metric("penstock_buffer_bytes", _GAUGE, "Memory of half-received requests and of answers.", ("of",))
BUFFER_BYTES_MAX = Metric("penstock_buffer_bytes_max", _GAUGE, "Limit of that memory.", ("of",))
ANSWER_FILES = Metric("penstock_answer_files", _GAUGE, "Files held open by answers that clients have not taken yet.")
DAMAGED_FRAMES = Metric(
    "penstock_damaged_frames_total", _COUNTER, "Corrupt frames received; each has cost its connection."
)
REQUESTS_OPEN = Metric("penstock_requests_open", _GAUGE, "Requests that are not answered yet.")
REQUEST_SECONDS = Metric(
    "penstock_request_seconds", _HISTOGRAM,
    "From the arrival of a request over the socket API until its answer was written or queued; a fetch at the end of "
    "a log waits for messages meanwhile.", ("api",), _US,
)  # fmt: skip
REQUEST_ERRORS = Metric(
    "penstock_request_errors_total", _COUNTER, "Requests that were answered with an error.", ("api", "code")
)

CERTIFICATE_EXPIRES = Metric(
    "penstock_certificate_expires_seconds", _GAUGE,
    "Expiry of the first of the certificates in use that this setting names (Unix time).", ("setting",), _US,
)  # fmt: skip
FAILED_LOGINS = Metric("penstock_failed_logins_total", _COUNTER, "Connections whose login failed.")
UNFINISHED_LOGINS = Metric(
    "penstock_unfinished_logins_total",
    _COUNTER,
    "Logins that were begun and not finished: the client disconnected, timed out, or was closed to make room.",
)
THROTTLED = Metric(
    "penstock_throttled_requests_total", _COUNTER,
    "Requests of users above a rate limit: `delayed` (done; the next one must wait), or `refused`.",
    ("how",),
)  # fmt: skip
SPANS_EXPORTED = Metric("penstock_spans_exported_total", _COUNTER, "Spans of traced messages that were delivered.")
SPANS_DROPPED = Metric(
    "penstock_spans_dropped_total",
    _COUNTER,
    "Spans that were dropped: the queue was full, or the endpoint did not take them.",
)
TRACES_DROPPED = Metric(
    "penstock_traces_dropped_total", _COUNTER, "Traced messages without spans, because too many were open."
)

METRICS = (
    BUILD_INFO, READY, CPU_SECONDS, RESIDENT_BYTES, OPEN_FILES, OPEN_FILES_MAX, START_SECONDS, LOOP_LAG_SECONDS,
    DISK_ANSWERS, DISK_FREE_BYTES, DISK_SIZE_BYTES, DISK_WORK, NATS_CONNECTED, NATS_DISCONNECTS, NATS_ANSWERS_DROPPED,
    NATS_MESSAGES_SKIPPED, NATS_UNANSWERABLE, NATS_PAUSED, NATS_WRITE_BYTES,
    LEAF_UP, LEAF_PENDING_BYTES, LEAF_UNDELIVERED, LEAF_SUBJECTS,
    API_SERVED, API_DECISION, API_REQUESTS, API_ERRORS, API_SECONDS, API_OPEN,
    READERS, READER_PULLS, READER_DELIVERIES, READER_BYTES, LETTERS_WAITING, LETTERS,
    READER_TOO_LARGE, *consumer_metrics.METRICS, CONNECTIONS, CONNECTIONS_MAX,
    BUFFER_BYTES, BUFFER_BYTES_MAX, ANSWER_FILES,
    DAMAGED_FRAMES, REQUESTS_OPEN, REQUEST_SECONDS, REQUEST_ERRORS, CERTIFICATE_EXPIRES, FAILED_LOGINS,
    UNFINISHED_LOGINS, THROTTLED,
    SPANS_EXPORTED, SPANS_DROPPED, TRACES_DROPPED,
)  # fmt: skip
"""All metrics, in the order of the page."""
