"""Encryption keys of simulated brokers, derived from their names so that a seed is deterministic.

Rules: Without the extra `encryption` there are no keys, and no stream of a plan is encrypted.
"""

from __future__ import annotations

from importlib.util import find_spec
from random import Random

from penstock.commitlog.files.files import holds_messages
from penstock.vfs import Vfs
from penstock.vfs.keys import EncryptionKeys

_HIDDEN = 0.3


def encrypted(vfs: Vfs, name: str, run: int) -> Vfs | None:
    """Return the broker's `vfs` for encrypted streams in this run; None: it has no keys."""
    try:
        from penstock.vfs.encrypted import EncryptedVfs  # needs `cryptography`, an extra
    except ImportError:
        return None
    chance = Random(f"{name} run {run} nonces")  # noqa: S311 (nothing secret)
    keys = EncryptionKeys([(f"of-{name.replace(' ', '-')}", name.encode().ljust(32, b".")[:32])])
    return EncryptedVfs(vfs, keys, holds_messages, chance.randbytes)


def encrypted_slots(slots: int, chance: Random) -> frozenset[int]:
    """Draw the slots whose streams are encrypted."""
    drawn = frozenset(slot for slot in range(slots) if chance.random() < _HIDDEN)
    return drawn if find_spec("cryptography") is not None else frozenset()
