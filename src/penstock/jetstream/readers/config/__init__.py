"""The config of a consumer: its fields, parsed, completed, checked, and as the broker uses it, in this order.

`ack_checks` and `updates` are checks, too.
"""

from __future__ import annotations
