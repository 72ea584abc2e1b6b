"""Parts of the table of readers: turns and times of each, its rows from the log, its frames, and its end."""

from __future__ import annotations
