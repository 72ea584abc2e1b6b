"""What a broker does with its readers: when each has its turn, what it reads and is sent, and when it ends."""

from __future__ import annotations
