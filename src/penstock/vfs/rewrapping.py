"""With which master keys files are encrypted, and how they change to another one: only their headers are written anew.

Rules: of the two copies of a header one is always whole: the second is written once the first is on the disk. A broker
may have the file open meanwhile: the key of the file stays what it is. A file whose key is not here stays as it is.

Theory: whoever has an older copy of a file, and the master key of that time, has the key of the file for good. What is
encrypted with a key that is known to others has to be written anew, not wrapped anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock.vfs import Vfs
from penstock.vfs import encrypted_format as form
from penstock.vfs.keys import EncryptionKeys

_READ_BYTES = form.SLOT_STEP_BYTES + 512


def key_ids(vfs: Vfs, path: str) -> tuple[str, ...]:
    """The ids of the keys that open a file; empty: it is not encrypted, or its header is lost. OSError."""
    with closing(vfs.open(path, read_only=True)) as file:
        slots = form.slots_in(file.read_at(0, _READ_BYTES), path)
    return tuple(dict.fromkeys(slot.key_id for slot in slots))


def rewrap(vfs: Vfs, path: str, keys: EncryptionKeys, random: Callable[[int], bytes]) -> bool:
    """Wrap the key of a file with the current master key; whether there was something to do. KeyMissingError, OSError.

    On the disk when it returns. `vfs` is that of the encrypted bytes.
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
