"""Rows of a log of consumers: keys and values (ADR 107).

    v1/ID/config     told bytes of the caller
    v1/ID/state      a snapshot
    v1/ID/SLOT       a change; ID is 8 bytes, SLOT one
"""

from __future__ import annotations

ID_BYTES = 8
TOLD_BYTES_MAX = 256 * 1024
SLOTS = 256
