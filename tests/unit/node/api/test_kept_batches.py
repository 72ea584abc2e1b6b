"""Batches kept in memory, beside a list of all that were kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.node.api.kept_batches import KeptBatches
from tests.extent import examples

KEYS = [PartitionKey(StreamId(one), PartitionId(0)) for one in (1, 2)]
ROOM = 100


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 9), st.integers(1, 120)), max_size=40))
@settings(max_examples=examples(150), deadline=None)
def test_an_offset_is_found_in_the_batch_that_was_kept_last_for_it(acts: list[tuple[int, int, int, int]]) -> None:
    kept, identities, model = KeptBatches(ROOM), (object(), object()), dict[tuple[int, int], tuple[int, bytes]]()
    for number, (key, identity, place, size) in enumerate(acts):
        data = bytes([number]) * size
        kept.keep(KEYS[key], identities[identity], 10 * place, 10 * place + 5, data)
        if size <= ROOM:
            model.pop((key, 10 * place), None)
            while sum(len(one) for _, one in model.values()) + size > ROOM:
                del model[next(iter(model))]
            model[key, 10 * place] = identity, data
        assert kept.size_bytes == sum(len(one) for _, one in model.values())
    for key in range(2):
        for offset in range(100):
            found = model.get((key, offset // 10 * 10)) if offset % 10 < 5 else None
            wanted = found[1] if found is not None and found[0] == 0 else None
            assert kept.find(KEYS[key], identities[0], offset) == wanted
    assert kept.size_bytes == sum(len(one) for identity, one in model.values() if identity == 0)
