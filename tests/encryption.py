"""Encryption keys for tests."""

from __future__ import annotations

from penstock.vfs.keys import EncryptionKeys


def encryption_keys(*ids: str) -> EncryptionKeys:
    """Return keys with these ids (default: `first`), the current one first. A key depends only on its id."""
    return EncryptionKeys([(one, one.encode().ljust(32, b".")) for one in ids or ("first",)])
