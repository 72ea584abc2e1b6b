cimport cython
from libc.stdint cimport int32_t, int64_t
from penstock.hot cimport envelope_acks, lifetimes, memory, places, subjects, unwrap
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.headers cimport HeaderFields
from penstock.hot.message_ids cimport MessageIds
from penstock.hot.subject_table cimport SubjectTable
from penstock.hot.unwrap cimport OpenedEnvelopes

cdef int _LEVEL_ALL
cdef int _LEVEL_NONE
cdef int _LEVEL_LEADER
cdef int _LEVEL_UNKNOWN
cdef Py_ssize_t _ROW_BYTES
cdef Py_ssize_t _HEADER_BLOCK_BYTES_MAX
cdef Py_ssize_t _KEY_BYTES_MAX
cdef unsigned char _COOKIE_BYTE
cdef unsigned char _ZERO
cdef unsigned char _PLUS
cdef unsigned char _MINUS
cdef bytes _FAST
cdef int _REFUSES_BATCHES
cdef int _IS_BATCH
cdef bytes _NONE
cdef bytes _LEADER
cdef bytes _ALL
cdef bytes _ONE
cdef Py_ssize_t _STATUS
cdef unsigned char _SPACE
cdef unsigned char _CR
cdef bytes _CONTROL
cdef bytes _FLOW_CONTROL
cdef bytes _STALLED
cdef Py_ssize_t _FLOW_CONTROL_SUBJECT_BYTES_MAX
cdef bytes _CRLF
cdef bytes _PUB
cdef bytes _NOTHING
cdef int64_t _INVALID
cdef int _OF_SUBJECT
cdef int _OF_ALL

@cython.final
cdef class RefusedMessage:
    cdef readonly Py_ssize_t row
    cdef readonly int verdict
    cdef readonly int64_t number
    cdef readonly int64_t partition
    cdef readonly bint is_answered
    cdef readonly bytes enveloped

@cython.final
cdef class Classified:
    cdef readonly MessageGroup group
    cdef readonly MessageGroup rows
    cdef readonly list refused
    cdef readonly list undelivered
    cdef readonly Py_ssize_t other_stream
    cdef readonly list misaddressed
    cdef readonly Py_ssize_t reserved
    cdef readonly Py_ssize_t controls
    cdef readonly bytearray flow_replies
    cdef readonly list duplicates
    cdef readonly list elsewhere
    cdef readonly bint has_ids
    cdef readonly bint has_ttls
    cdef readonly bint has_rollups
    cdef readonly Py_ssize_t rollup_row
    cdef bint allows_ttls
    cdef bint allows_rollups
    cdef bint competes
    cdef bint is_only
    cdef readonly bint needs_ids
    cdef readonly bint needs_lasts
    cdef readonly bint needs_schedules
    cdef readonly list unknown
    cdef readonly list uncounted
    cdef HeaderFields _fields
    cdef OpenedEnvelopes _opened
    cdef bint _has_envelopes
    cdef MessageIds _ids
    cdef bint _tracks_ids
    cdef SubjectTable _lasts
    cdef dict _found_lasts
    cdef bint _is_added
    cdef int64_t _log_start
    cdef bytes _mistyped
    cdef bytes _schedules
    cdef int64_t _room_rows
    cdef int64_t _room_bytes
    cdef int64_t _subject_max
    cdef int64_t _counted_from
    cdef bint _refuses_subjects
    cdef dict _found_counts
    cdef SubjectTable _lasts_before
    cdef Py_ssize_t _noted
    cdef Py_ssize_t _key
    cdef Py_ssize_t _key_end
    cdef int64_t _number
    cdef int64_t _partition
    cdef int _batches

    @cython.locals(
        group=MessageGroup,
        in_envelope=bint,
        is_delivery=bint,
        level=int,
        out=MessageGroup,
        fields=HeaderFields,
        text="const unsigned char*",
        numbers="int32_t*",
        looks_at_subjects=bint,
        row=Py_ssize_t,
        at=Py_ssize_t,
        subject=Py_ssize_t,
        subject_end=Py_ssize_t,
        headers=Py_ssize_t,
        headers_end=Py_ssize_t,
        reply=Py_ssize_t,
        reply_end=Py_ssize_t,
        value=Py_ssize_t,
        value_end=Py_ssize_t,
        size_bytes=Py_ssize_t,
        verdict=int,
        is_marked=bint, is_named=bint, says_so=bint,
        early=Py_ssize_t,
        early_end=Py_ssize_t,
    )
    cdef int take(
        self,
        bytes name,
        bint acks_replies,
        Py_ssize_t message_bytes_max,
        bint skips_reserved,
        int64_t log_end,
        bint is_closed,
        bint acks_envelopes,
    ) except -1

    @cython.locals(
        group=MessageGroup,
        text=bytes,
        at=Py_ssize_t,
        headers=Py_ssize_t,
        headers_end=Py_ssize_t,
        reply=Py_ssize_t,
        reply_end=Py_ssize_t,
        status_end=Py_ssize_t,
        out=bytearray,
    )
    cdef bint _is_control(self, Py_ssize_t row, bint answers) except -1

    cdef int _read_fields(self, Py_ssize_t headers, Py_ssize_t headers_end, bint is_delivery) except -1

    @cython.locals(fields=HeaderFields)
    cdef bint _is_for_another(self, const unsigned char* text, bytes name) except -1

    @cython.locals(fields=HeaderFields, says_so=bint)
    cdef int _of_tombstone(self, const unsigned char* text, Py_ssize_t value_bytes) except? -3

    @cython.locals(fields=HeaderFields)
    cdef int _of_value(self, Py_ssize_t row) except? -3

    @cython.locals(grows=bint, at_limit=int)
    cdef int _of_room(
        self, const unsigned char* text, Py_ssize_t row, int64_t offset, int64_t size_bytes
    ) except? -3

    @cython.locals(fields=HeaderFields, policy=int)
    cdef int _level(self, const unsigned char* text, Py_ssize_t row) except -2

    @cython.locals(fields=HeaderFields, verdict=int, expects=bint)
    cdef int _of_fields(self, const unsigned char* text, Py_ssize_t row, int level, int64_t last_sequence) except? -3

    @cython.locals(found=int64_t)
    cdef int _of_ttl(self, const unsigned char* text) except? -3

    cdef int _of_schedule(self, Py_ssize_t row) except? -3

    @cython.locals(fields=HeaderFields)
    cdef int _of_rollup(self, const unsigned char* text) except? -3

    @cython.locals(
        fields=HeaderFields, last=int64_t, at=Py_ssize_t, subject=Py_ssize_t, subject_end=Py_ssize_t
    )
    cdef int _of_subject(self, const unsigned char* text, Py_ssize_t row, int64_t offset) except? -3

    @cython.locals(at_limit=int)
    cdef int _of_subject_limit(self, const unsigned char* text, Py_ssize_t row, int64_t offset) except? -3

    @cython.locals(
        last=int64_t, group=MessageGroup, at=Py_ssize_t, subject=Py_ssize_t, subject_end=Py_ssize_t, number=int64_t,
        below=int64_t, name=bytes,
    )
    cdef int _at_limit(self, const unsigned char* text, Py_ssize_t row, int64_t offset) except? -3

    @cython.locals(fields=HeaderFields)
    cdef int _count_again(
        self, bytes data, Py_ssize_t subject, Py_ssize_t subject_end, int64_t log_end
    ) except -1

    cdef int _count_all_again(self, int64_t offset) except -1

    cpdef SubjectTable lasts_since_rollup(self)

    @cython.locals(last=int64_t, name=bytes)
    cdef int64_t _last(
        self, const unsigned char* text, Py_ssize_t subject, Py_ssize_t subject_end, int64_t offset
    ) except? -3

    cdef int note_rows(self, int64_t log_end) except -1

    @cython.locals(lasts=SubjectTable)
    cpdef int take_back(self, int64_t log_end) except -1

    @cython.locals(one=RefusedMessage)
    cdef int _turn_away(self, Py_ssize_t row, int verdict, Py_ssize_t reply, Py_ssize_t reply_end) except -1

    @cython.locals(fields=HeaderFields, has_id=bint, expects_id=bint, place=tuple)
    cdef int _of_ids(self, bytes data, int64_t offset) except? -3

    @cython.locals(fields=HeaderFields, found=int)
    cdef int _keep_asked(self, bytes data, int64_t offset) except -1

    cdef int _of_sizes(
        self, Py_ssize_t row, Py_ssize_t value_bytes, Py_ssize_t header_bytes, Py_ssize_t message_bytes_max
    ) except -1

    @cython.locals(fields=HeaderFields, begin=Py_ssize_t)
    cdef int _of_key(self, bytes data, Py_ssize_t row) except -1

    @cython.locals(group=MessageGroup, opened=OpenedEnvelopes, at=Py_ssize_t)
    cdef int _keep(
        self, bytearray out, Py_ssize_t kept_row, Py_ssize_t row, Py_ssize_t reply, Py_ssize_t reply_end, bint is_early
    ) except -1

    @cython.locals(one=RefusedMessage, record=bytearray)
    cdef RefusedMessage _refused(self, Py_ssize_t row, int verdict, Py_ssize_t reply, Py_ssize_t reply_end)

@cython.locals(out=Classified, opened=OpenedEnvelopes, has_room=bint)
cpdef Classified classify(
    MessageGroup group,
    bytes name,
    bint acks_replies,
    Py_ssize_t message_bytes_max,
    bint skips_reserved,
    int64_t log_end,
    bint acks_envelopes,
    MessageIds ids,
    bint tracks_ids,
    SubjectTable lasts,
    int64_t log_start,
    bint allows_ttls = *,
    bint allows_rollups = *,
    bint competes = *,
    bytes mistyped = *,
    dict found_lasts = *,
    bint is_added = *,
    int64_t room_rows = *,
    int64_t room_bytes = *,
    int64_t subject_max = *,
    int64_t counted_from = *,
    bint refuses_subjects = *,
    dict found_counts = *,
    bint is_only = *,
    bytes schedules = *,
    int batches = *,
)

@cython.locals(out=Classified, opened=OpenedEnvelopes)
cpdef Classified close(MessageGroup group, bytes name, bint acks_replies, bint skips_reserved, bint acks_envelopes)

cdef bint _has_status(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef bint _is_flow_control(bytes text, Py_ssize_t begin, Py_ssize_t end) except -1

cdef bint _is_of_fast_batch(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(at=Py_ssize_t)
cdef bint _is_number(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef bint _says(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, int64_t wanted) noexcept

@cython.locals(
    text="const unsigned char*",
    numbers="int32_t*",
    row=Py_ssize_t,
    at=Py_ssize_t,
    size=Py_ssize_t,
    subject=Py_ssize_t,
    subject_end=Py_ssize_t,
)
cdef bint _all_pass(MessageGroup group, bint acks_replies, Py_ssize_t message_bytes_max, bint skips_reserved) except -1
