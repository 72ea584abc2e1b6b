"""Rotates the master key of encrypted files: rewraps the file key by rewriting only the headers.

Rules: one of the two copies of a header is always valid: the second is written after the first is on disk. A broker may
have the file open: the file's own key does not change. A file whose key is missing stays unchanged.

Theory: anyone with an old copy of a file and the old master key has the file's key for ever. After a leak of a key,
files must be re-encrypted, not rewrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock.vfs import Vfs
from penstock.vfs import encrypted_format as form
from penstock.vfs.keys import EncryptionKeys

_READ_BYTES = form.SLOT_STEP_BYTES + 512


def key_ids(vfs: Vfs, path: str) -> tuple[str, ...]:
    """Return the ids of the keys that open a file; empty: it is not encrypted, or its header is lost. OSError."""
    with closing(vfs.open(path, read_only=True)) as file:
        slots = form.slots_in(file.read_at(0, _READ_BYTES), path)
    return tuple(dict.fromkeys(slot.key_id for slot in slots))


def rewrap(vfs: Vfs, path: str, keys: EncryptionKeys, random: Callable[[int], bytes]) -> bool:
    """Wrap a file's key with the current master key; return True if anything changed. KeyMissingError, OSError.

    The change is on disk when it returns. `vfs` is that of the encrypted bytes.
    """
    with closing(vfs.open(path)) as file:
        area = file.read_at(0, _READ_BYTES)
        slots = form.slots_in(area, path)
        if not slots or (len(slots) == form.SLOTS and all(slot.key_id == keys.current_id for slot in slots)):
            return False
        opener = form.opener_of(slots, keys, path)
        sequence = slots[0].sequence + 1
        is_first_whole = bool(form.slots_in(area[: form.SLOT_STEP_BYTES], path))
        for number in (1, 0) if is_first_whole else (0, 1):
            file.write_at(number * form.SLOT_STEP_BYTES, form.packed_slot(opener, sequence, keys, random))
            file.sync()
    return True
