"""Keys for tests of what is encrypted."""

from __future__ import annotations

from penstock.vfs.keys import EncryptionKeys


def encryption_keys(*ids: str) -> EncryptionKeys:
    """Keys of these ids, the current one first; the same for an id each time. None: one, of the id `first`."""
    return EncryptionKeys([(one, one.encode().ljust(32, b".")) for one in ids or ("first",)])
