"""What a crash leaves is looked at for logs that are plain, and for encrypted ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extent import needs_time
from tests.logs import encrypted_logs


@pytest.fixture(scope="module", params=["plain", pytest.param("encrypted", marks=needs_time)])
def at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """How the logs of a module lie on the disk."""
    if request.param == "plain":
        yield
        return
    with encrypted_logs():
        yield
