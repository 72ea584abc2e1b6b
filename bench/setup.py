"""Build: the version is the one of Penstock in the folder above; all else is in pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import setup

with (Path(__file__).resolve().parents[1] / "pyproject.toml").open("rb") as file:
    VERSION = tomllib.load(file)["project"]["version"]

if __name__ == "__main__":
    setup(
        version=VERSION,
        install_requires=[
            f"penstock=={VERSION}",  # it uses the parts of Penstock that are not public
            "hdrhistogram>=0.10.3",  # percentiles of latency and reach
            "matplotlib>=3.10",  # the plots of a report
        ],
    )
