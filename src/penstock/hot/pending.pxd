# C types for pending.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.hot cimport load, memory
from penstock.hot.change_log cimport ChangeLog
from penstock.hot.load cimport loose_int64
from penstock.hot.siphash cimport SipHash

cdef int _APPLIED
cdef int _LATE
cdef int _UNKNOWN
cdef int _FORGED
cdef int _ACK
cdef int _NAK
cdef int _IN_PROGRESS
cdef int _TERM
cdef int64_t _NEVER
cdef int _FREE
cdef int _HAND
cdef int _WAITS
cdef int _READY
cdef int _PARKED
cdef int _ENDED
cdef Py_ssize_t _SAMPLES_MAX
cdef int _CLOCK
cdef int _DELIVER
cdef int _KEYED
cdef int _PARK
cdef int _AGAIN
cdef int _SETTLE
cdef int _NAKKED
cdef int _PROGRESS
cdef int _GONE
cdef int _ALL
cdef Py_ssize_t _BLOCK
cdef Py_ssize_t _BLOCK_BITS
cdef Py_ssize_t _BLOCK_MASK
cdef Py_ssize_t _ROOM_MIN
cdef int32_t _COUNT_MAX
cdef int64_t _DELAY_MS_MAX
cdef int _STATE_BITS
cdef int32_t _STATE_MASK
cdef Py_ssize_t _ID_BYTES
cdef Py_ssize_t _ENDED_MAX
cdef uint64_t _TOKENS

@cython.final
cdef class PendingTable:
    cdef int64_t* offsets
    cdef int64_t* lasts
    cdef int64_t* firsts
    cdef int64_t* dues
    cdef int32_t* marks
    cdef int32_t* hashes
    cdef int64_t* _block_dues
    cdef int32_t* _block_ready
    cdef Py_ssize_t begin
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef Py_ssize_t _blocks_room
    cdef readonly bytes consumer_id
    cdef public int64_t next_offset
    cdef public int64_t delivered
    cdef public int64_t generation
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t ack_pending
    cdef readonly Py_ssize_t parked
    cdef readonly Py_ssize_t ready
    cdef readonly Py_ssize_t redelivered
    cdef readonly Py_ssize_t ended
    cdef public bint takes_settled
    cdef list _settled
    cdef int64_t _settled_begin
    cdef int64_t _settled_end
    cdef readonly int64_t acked
    cdef readonly int64_t late
    cdef readonly int64_t unknown
    cdef readonly int64_t forged
    cdef readonly int64_t naks
    cdef readonly int64_t progressed
    cdef readonly int64_t terms
    cdef readonly int64_t redeliveries
    cdef public list samples
    cdef int64_t _sampled
    cdef bint is_touched
    cdef readonly ChangeLog changes
    cdef public int64_t clock_ms
    cdef readonly int64_t origin_us
    cdef int64_t next_due_ms
    cdef dict _key_counts
    cdef set _heirs
    cdef bytearray _text
    cdef SipHash _hash
    cdef bytes _waits
    cdef Py_ssize_t _waits_count
    cdef readonly int order
    cdef readonly bint is_ordered
    cdef readonly bint acks_all
    cdef readonly bint tells_terminated
    cdef int64_t max_deliver
    cdef Py_ssize_t pending_max
    cdef Py_ssize_t parked_max
    cdef int64_t sample_percent

    @cython.locals(index=Py_ssize_t)
    cpdef object configure(
        self, tuple waits_us, int64_t max_deliver, Py_ssize_t pending_max, Py_ssize_t parked_max, int order,
        bint acks_all, int64_t sample_percent, bint tells_terminated,
    )

    cpdef object keep_generation(self, int64_t generation)

    cpdef int go_on(self, int64_t now_us) except -1

    cpdef bint has_no_room(self) noexcept

    cpdef int64_t next_due_us(self) except -2

    cpdef int64_t floor_offset(self) except -1

    @cython.locals(least=int64_t, index=Py_ssize_t)
    cpdef int64_t floor_sequence(self) except -1

    @cython.locals(index=Py_ssize_t)
    cdef Py_ssize_t find(self, int64_t offset) noexcept

    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, step=int64_t)
    cdef Py_ssize_t lower_bound(self, int64_t offset) noexcept

    cdef int64_t deliveries_at(self, Py_ssize_t index) noexcept

    @cython.locals(block=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t next_ready(self, Py_ssize_t index) noexcept

    @cython.locals(found=list, index=Py_ssize_t)
    cpdef list ready_offsets(self, int64_t begin, Py_ssize_t limit)

    @cython.locals(found=list, index=Py_ssize_t)
    cpdef list offsets_in(self, int state, Py_ssize_t limit)

    @cython.locals(index=Py_ssize_t, due=int64_t, due_us=int64_t, mark=int32_t)
    cpdef tuple entry(self, int64_t offset)

    @cython.locals(found=list, index=Py_ssize_t, one=tuple)
    cpdef list entries(self, int64_t begin, Py_ssize_t limit)

    cpdef bint holds(self, int64_t offset) except -1

    @cython.locals(found=list, index=Py_ssize_t)
    cpdef list offsets_between(self, int64_t begin, int64_t end)

    @cython.locals(found=list)
    cpdef list take_settled(self)

    cdef void _note_settled(self, int64_t offset) except *

    cpdef Py_ssize_t size_bytes(self) except -1

    cpdef int64_t now_ms(self, int64_t now_us) except -1

    @cython.locals(ms=int64_t)
    cpdef int tick(self, int64_t now_us) except -1

    @cython.locals(waits="const loose_int64*")
    cdef int64_t wait_ms(self, int64_t deliveries) except -1

    cpdef bint is_busy(self, int64_t key_hash) except -1

    cpdef int deliver(self, int64_t offset, int64_t key_hash, int64_t now_us) except -1

    @cython.locals(due=int64_t)
    cdef int enter(self, int64_t offset, int64_t key_hash) except -1

    cpdef int park(self, int64_t offset, int64_t key_hash) except -1

    cdef int deliver_again(self, Py_ssize_t index, int64_t now_us) except -1

    @cython.locals(deliveries=int32_t)
    cdef int redeliver(self, Py_ssize_t index) except -1

    cpdef int pass_to(self, int64_t offset) except -1

    @cython.locals(target="unsigned char*")
    cpdef int64_t token(self, int64_t sequence, int64_t consumer_sequence) except -1

    @cython.locals(found=int)
    cpdef int settle(
        self, int kind, int64_t offset, int64_t sequence, int64_t token, int64_t delay_us, int64_t now_us
    ) except -1

    cpdef int check(self, int kind, int64_t offset, int64_t sequence, int64_t token) except -1

    @cython.locals(index=Py_ssize_t, is_done=bint)
    cdef int _judge(self, int kind, int64_t offset, int64_t sequence, int64_t token) except -1

    @cython.locals(index=Py_ssize_t, delay_ms=int64_t)
    cdef int _apply(self, int kind, int64_t offset, int64_t delay_us, int64_t now_us) except -1

    @cython.locals(index=Py_ssize_t, deliveries=int64_t, age_ms=int64_t)
    cdef void _sample(self, int64_t offset, int64_t now_us) except *

    cdef int progress(self, Py_ssize_t index) except -1

    cdef int nak(self, Py_ssize_t index, int64_t delay_ms) except -1

    cdef int make_ready(self, Py_ssize_t index) except -1

    @cython.locals(index=Py_ssize_t)
    cpdef bint end(self, int64_t offset) except -1
    cpdef bint has_ended(self, int64_t offset) except -1
    cpdef bint give_up(self, int64_t offset) except -1

    @cython.locals(removed=Py_ssize_t, index=Py_ssize_t, last=int64_t)
    cpdef Py_ssize_t remove_range(self, int64_t begin, int64_t end) except -1

    @cython.locals(is_changed=bint, is_on=bint)
    cpdef bint cut(self, int64_t end) except -1

    cpdef object reset(self, int64_t next_offset)

    cpdef object clear(self)

    @cython.locals(ended=list, now_ms=int64_t, least=int64_t, block=Py_ssize_t)
    cpdef list expire(self, int64_t now_us)

    @cython.locals(least=int64_t, index=Py_ssize_t, state=int32_t, due=int64_t)
    cdef int64_t _expire_block(self, Py_ssize_t block, int64_t now_ms, list ended) except -1

    @cython.locals(index=Py_ssize_t, before=object)
    cdef int append(
        self, int64_t offset, int64_t last, int64_t first, int64_t due, int32_t deliveries, int state, int32_t key_hash
    ) except -1

    @cython.locals(mark=int32_t, step=int)
    cdef void set_state(self, Py_ssize_t index, int state) noexcept

    @cython.locals(block=Py_ssize_t)
    cdef void set_due(self, Py_ssize_t index, int64_t due) noexcept

    cdef int release(self, Py_ssize_t index) except -1

    @cython.locals(end=Py_ssize_t, index=Py_ssize_t)
    cdef int release_all(self, int64_t offset) except -1

    @cython.locals(deliveries=int32_t, is_parked=bint)
    cdef void drop(self, Py_ssize_t index) except *

    @cython.locals(key_hash=int32_t, left=object, other=Py_ssize_t)
    cdef void _leave_key(self, Py_ssize_t index, bint is_parked) except *
    cdef void _ready_heirs(self, Py_ssize_t index) except *

    cdef int tidy(self) except -1

    cdef int _make_room(self) except -1

    cdef void _resize(self, Py_ssize_t room) except *

    @cython.locals(to=Py_ssize_t, index=Py_ssize_t, mark=int32_t, block=Py_ssize_t)
    cdef int _pack(self) except -1
