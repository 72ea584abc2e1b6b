"""`python -m tests.docs.reference FOLDER` writes the generated pages of the reference."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.reference.cli_reference import main

main(Path(sys.argv[1]))
