"""Base of objects tied to their process by connections or a thread."""

from __future__ import annotations

from typing import NoReturn


class OfThisProcess:
    """Makes pickling and copying fail with advice on what to do instead."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__module__}.{type(self).__qualname__} cannot be pickled or copied: it has connections of "
            "this process; give the other one the address, and have it call penstock.connect(…) itself"
        )
