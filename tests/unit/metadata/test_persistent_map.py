"""The persistent map against a dict that is copied whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.persistent_map import PersistentMap


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 120), st.integers())))
def test_as_a_dict(changes: list[tuple[bool, int, int]]) -> None:
    present: PersistentMap[int, int] = PersistentMap(dict.fromkeys(range(100), 0))
    model = dict(present)
    earlier = []
    for adds, key, value in changes:
        earlier.append((present, dict(model)))
        if adds:
            present, model[key] = present.with_item(key, value), value
        elif key in model:
            present = present.without(key)
            del model[key]
        else:
            with pytest.raises(KeyError):
                present.without(key)
        assert key not in present or present[key] == model[key]
    for found, wanted in [*earlier, (present, model)]:
        assert dict(found) == wanted
        assert len(found) == len(wanted)


def test_an_added_key_keeps_its_place() -> None:
    present: PersistentMap[int, str] = PersistentMap()
    for key in range(1_000):
        present = present.with_item(key, "")
    present = present.with_item(3, "changed").without(500)
    assert list(present) == [key for key in range(1_000) if key != 500]


def test_a_change_shares_what_stays() -> None:
    """Copying the whole at each change would look at every key a thousand times."""
    looks = 0

    class Key(int):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return int(self)

        def __eq__(self, other: object) -> bool:
            return int(self) == other

    present: PersistentMap[Key, None] = PersistentMap()
    for number in range(2_000):
        present = present.with_item(Key(number), None)
    assert looks < 2_000 * 100
