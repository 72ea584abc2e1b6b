"""Answers of the consumer API, by what its requests ask for; the handlers beside this package share them out."""

from __future__ import annotations
