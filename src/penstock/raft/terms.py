"""Raft terms that name their candidate, so no two brokers ever lead in the same term.

Rules: terms are compared as numbers. A candidate takes the next round after its current term. A message that only the
leader or candidate of a term may send is accepted only from the broker that the term names.

    term, 62 bits     round (30) | candidate: low bits of its broker id (16) | draw (16)

    6 of broker 3     000000000000000000000000000110 | 0000000000000011 | 1010011100011110

Theory: Lamport, "The part-time parliament" (1998): a ballot names its initiator. In Raft a term has one leader because
no voter votes twice in it, which is only as good as the voters' memory: a voter that is set back to an older copy of
its disk votes again. Then entries of the same index and term differ, and no comparison in Raft can detect it. The
random draw covers a candidate that has itself forgotten its candidacy, or whose copy runs in the other half of a
network partition. It also tells ids apart that differ only above their low 16 bits.

Terms below 2**32 come from data directories from before terms named candidates: only a round. The next term continues
from it, and no broker leads in such a term any more.
"""

from __future__ import annotations

from penstock.base.ids import BrokerId

ROUND_MAX = 2**30 - 1  # with one election a second it lasts 34 years
DRAWS = 2**16
_CANDIDATES = 2**16
_ROUND_SHIFT, _CANDIDATE_SHIFT = 32, 16


def next_term(term: int, candidate: BrokerId, draw: int) -> int:
    """Return the term of `candidate`'s next election after `term`; `draw` is a random number below DRAWS."""
    assert 0 <= draw < DRAWS
    return round_of(term) + 1 << _ROUND_SHIFT | candidate % _CANDIDATES << _CANDIDATE_SHIFT | draw


def round_of(term: int) -> int:
    """Return the election count of a term, from 1; 0 is before any."""
    return term >> _ROUND_SHIFT or term


def names(term: int, candidate: BrokerId) -> bool:
    """True if `candidate` may be the one that made `term`."""
    return bool(term >> _ROUND_SHIFT) and (term >> _CANDIDATE_SHIFT) % _CANDIDATES == candidate % _CANDIDATES


def term_text(term: int) -> str:
    """Return the term for people: `6 of broker 3 (a71e)`; of an old one the round alone."""
    if not term >> _ROUND_SHIFT:
        return str(term)
    return f"{round_of(term)} of broker {(term >> _CANDIDATE_SHIFT) % _CANDIDATES} ({term % DRAWS:04x})"
