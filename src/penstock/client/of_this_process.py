"""What has connections, or a thread, of its process."""

from __future__ import annotations

from typing import NoReturn


class OfThisProcess:
    """Base of what cannot be pickled or copied, and says what to do in its place."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__module__}.{type(self).__qualname__} cannot be pickled or copied: it has connections of "
            "this process; give the other one the address, and have it call penstock.connect(…) itself"
        )
