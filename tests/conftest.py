"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more about the machine than about the code. A failing example is printed as a
# decorator that replays it, also where the example database is not kept.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
