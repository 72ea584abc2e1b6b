"""Terms: each names the candidate that made it, so no two brokers ever lead in the same one.

Rules: terms are compared as numbers. A candidate takes the next round, whatever term it is in. What only a leader or a
candidate of a term may say is taken from nobody but the broker that the term names.

    term, 62 bits     round (30) | candidate: low bits of its broker id (16) | draw (16)

    6 of broker 3     000000000000000000000000000110 | 0000000000000011 | 1010011100011110

Theory: Lamport, "The part-time parliament" (1998): a ballot names who began it. In Raft a term has one leader because
nobody votes twice in it, and that is only as good as the voters' memory: one that is set back to an older copy of its
disk votes again. Then entries of the same index and term differ, and nothing that Raft compares can ever see it. The
draw is for a candidate that has itself forgotten that it stood, or that has a copy of itself in the other half of a
partition. Ids that differ only above their low 16 bits are told apart by it, too.

Terms below 2**32 are those of data directories from before terms named anybody: just a round. They go on with the next
one, and nobody leads in them any more.
"""

from __future__ import annotations

from penstock.base.ids import BrokerId

ROUND_MAX = 2**30 - 1  # with one election a second it lasts 34 years
DRAWS = 2**16
_CANDIDATES = 2**16
_ROUND_SHIFT, _CANDIDATE_SHIFT = 32, 16


def next_term(term: int, candidate: BrokerId, draw: int) -> int:
    """The term in which `candidate` stands that is in `term`; `draw` is a random number below DRAWS."""
    assert 0 <= draw < DRAWS
    return round_of(term) + 1 << _ROUND_SHIFT | candidate % _CANDIDATES << _CANDIDATE_SHIFT | draw


def round_of(term: int) -> int:
    """Counts elections, from 1; 0 is before any."""
    return term >> _ROUND_SHIFT or term


def names(term: int, candidate: BrokerId) -> bool:
    """Whether that broker may be the one that made `term`."""
    return bool(term >> _ROUND_SHIFT) and (term >> _CANDIDATE_SHIFT) % _CANDIDATES == candidate % _CANDIDATES


def term_text(term: int) -> str:
    """For people: `6 of broker 3 (a71e)`; of an old one the round alone."""
    if not term >> _ROUND_SHIFT:
        return str(term)
    return f"{round_of(term)} of broker {(term >> _CANDIDATE_SHIFT) % _CANDIDATES} ({term % DRAWS:04x})"
