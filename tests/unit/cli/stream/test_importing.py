"""What `penstock import` tells people."""

from __future__ import annotations

import pytest

from penstock.cli.stream.import_jetstream import frozen_copy_note


@pytest.mark.parametrize(("source", "is_told"), [("KV_settings", True), ("OBJ_files", True), ("ORDERS", False)])
def test_the_cut_over_of_a_bucket_warns_of_jetstreams_copy(source: str, is_told: bool) -> None:
    note = frozen_copy_note(source)
    assert bool(note) is is_told
    assert not is_told or "frozen copy, without an error: have all of them name Penstock's domain, or delete" in note
