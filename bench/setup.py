"""Build: the version is the one of Penstock in the folder above; all else is in pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

SOURCE = Path(__file__).resolve().parents[1] / "src" / "penstock" / "__init__.py"
(VERSION,) = re.findall(r'^__version__ = "([^"]+)"', SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE)

if __name__ == "__main__":
    setup(
        version=VERSION,
        install_requires=[
            f"penstock-log=={VERSION}",  # it uses the parts of Penstock that are not public
            "hdrhistogram>=0.10.3",  # percentiles of latency and reach
            "matplotlib>=3.10",  # the plots of a report
        ],
    )
