"""Users as who exports them is told, for a backup: page by page, with what checks their secrets.

Rules: the metadata leader tells it, once a command says that it did: so `__audit` has it before anybody has the users.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.access import User
from penstock.base import limits
from penstock.messages import ExportUsersResponse, UserExport
from penstock.metadata.image import ClusterImage


def exported(image: ClusterImage, after: str) -> ExportUsersResponse:
    """The page behind a name."""
    page, next_after = page_of(sorted(image.users), after)
    return ExportUsersResponse(users=tuple(user_export(image.users[name]) for name in page), next_after=next_after)


def page_of(names: list[str], after: str) -> tuple[list[str], str | None]:
    """One answer's share of sorted names, and what to ask for the rest with."""
    left = names[bisect_right(names, after) :]
    page = left[: limits.USERS_PER_ANSWER_MAX]
    return page, page[-1] if len(left) > len(page) else None


def user_export(user: User) -> UserExport:
    """All of which a user can be made again."""
    return UserExport(
        name=user.name,
        created_us=user.created_us,  # type: ignore[arg-type]
        credentials=user.credentials,
        rules=user.rules,
        quotas=user.quotas,
    )
