"""Draw the rates of a run by window as docs/img/throughput-by-window.svg: `python tools/window_picture.py RUN.json`.

The run is one of `penstock bench throughput` with three windows or more, saved with `--json`. Only the named systems
are drawn, for the picture is the first thing on its page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from penstock_bench.results.page import by_window, rates_by_window
from penstock_bench.results.report import Report, read_json

PICTURE = Path(__file__).parent.parent / "docs" / "img" / "throughput-by-window.svg"
SYSTEMS = ("penstock", "penstock-os", "jetstream", "jetstream-always")


def picture(report: Report) -> str:
    """Return the picture as SVG; ValueError: the run has no three windows."""
    shown = [
        msgspec.structs.replace(one, systems={name: one.systems[name] for name in SYSTEMS if name in one.systems})
        for one in report.comparisons
    ]
    if not (groups := by_window(shown)):
        raise ValueError("this run has no three windows of one load")
    title, found = groups[0]
    return rates_by_window(title, found, {name: number for number, name in enumerate(SYSTEMS)}).svg


if __name__ == "__main__":
    PICTURE.write_text(picture(read_json(Path(sys.argv[1]))), encoding="utf-8")
