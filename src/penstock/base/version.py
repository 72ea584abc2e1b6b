"""The version of this Penstock; `pyproject.toml` takes it from here."""

VERSION = "0.1.0"
