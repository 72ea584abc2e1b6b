"""Entry point of `python -m penstock`: the command `penstock`."""

from __future__ import annotations

from penstock.cli import main

main()
