"""Keys of simulated brokers: each has its own, made from its name, so that a seed is the same every time.

Rules: without the extra `encryption` there are none, and no stream of a plan is encrypted.
"""

from __future__ import annotations

from importlib.util import find_spec
from random import Random

from penstock.commitlog.files import holds_messages
from penstock.vfs import Vfs
from penstock.vfs.keys import EncryptionKeys

_HIDDEN = 0.3


def encrypted(vfs: Vfs, name: str, run: int) -> Vfs | None:
    """`vfs` for the encrypted streams of that broker, in that run; None: it has no keys."""
    try:
        from penstock.vfs.encrypted import EncryptedVfs  # it brings `cryptography`, an extra
    except ImportError:
        return None
    chance = Random(f"{name} run {run} nonces")  # noqa: S311 (nothing secret)
    keys = EncryptionKeys([(f"of-{name.replace(' ', '-')}", name.encode().ljust(32, b".")[:32])])
    return EncryptedVfs(vfs, keys, holds_messages, chance.randbytes)


def encrypted_slots(slots: int, chance: Random) -> frozenset[int]:
    """Of which slots the streams are encrypted."""
    drawn = frozenset(slot for slot in range(slots) if chance.random() < _HIDDEN)
    return drawn if find_spec("cryptography") is not None else frozenset()
