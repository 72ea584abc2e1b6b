"""Export of users for a backup, in pages, with the verifiers of their secrets.

Rules: the metadata leader answers only after the command that records the export is committed: so `__audit` has the
export before a client has the users.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.access import User
from penstock.base import limits
from penstock.messages import ExportUsersResponse, UserExport
from penstock.metadata.image import ClusterImage


def exported(image: ClusterImage, after: str) -> ExportUsersResponse:
    """Return the page of users after a name."""
    page, next_after = page_of(sorted(image.users), after)
    return ExportUsersResponse(users=tuple(user_export(image.users[name]) for name in page), next_after=next_after)


def page_of(names: list[str], after: str) -> tuple[list[str], str | None]:
    """Return one page of the sorted names, and the name to continue from (None: no more)."""
    left = names[bisect_right(names, after) :]
    page = left[: limits.USERS_PER_ANSWER_MAX]
    return page, page[-1] if len(left) > len(page) else None


def user_export(user: User) -> UserExport:
    """Return all fields from which a user can be created again."""
    return UserExport(
        name=user.name,
        created_us=user.created_us,  # type: ignore[arg-type]
        credentials=user.credentials,
        rules=user.rules,
        quotas=user.quotas,
    )
