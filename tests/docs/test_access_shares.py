"""The table of what users fill says what `base/limits.py` says, and names every such limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.base import limits

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "quotas.md"

LIMITS = {
    "connections to a broker": (limits.CONNECTIONS_MAX,),
    "streams": (limits.STREAMS_MAX,),
    "partitions of all streams": (limits.PARTITIONS_MAX,),
    "consumers of JetStream's API at a broker, of the streams that it leads": (limits.READERS_MAX,),
    "message ids of a partition": (limits.DEDUP_IDS_MAX, limits.DEDUP_IDS_DEFAULT),
    "committed offsets of a partition of `__offsets`": (limits.OFFSETS_KEPT_MAX, limits.OFFSETS_PARTITIONS),
    "groups with members of a partition of `__offsets`": (limits.GROUPS_IN_USE_MAX,),
    "versions of schemas, and bytes of their texts": (
        limits.SCHEMA_VERSIONS_KEPT_MAX,
        limits.SCHEMA_TEXTS_BYTES_MAX // limits.MIB,
    ),
    "changes of schemas that wait": (limits.SCHEMA_REGISTRATIONS_WAITING_MAX,),
    "members of a group, and partitions of its streams": (limits.GROUP_MEMBERS_MAX, limits.GROUP_PARTITIONS_MAX),
    "known producers of a partition": (limits.PRODUCERS_MAX,),
    "known queries that publish staged rows into a partition": (limits.PUBLISHED_QUERIES_MAX,),
    "staged rows of a partition": (limits.STAGED_BYTES_MAX // limits.GIB,),
    "subjects of a partition whose last message is known in memory": (limits.SUBJECT_TABLE_MAX,),
    "names of archives of a stream": (limits.ARCHIVES_MAX,),
    "`get` and list offsets that wait": (limits.QUERIES_WAITING_MAX,),
    "fetches that wait for new messages": (limits.IN_FLIGHT_REQUESTS_MAX,),
    "fetches of some subjects or columns that wait": (limits.PROJECTIONS_WAITING_MAX,),
    "staged rows that wait to be published": (limits.PUBLISHES_WAITING_MAX,),
    "commits beyond the end of a log that wait until its leader is confirmed": (limits.DEFERRED_COMMIT_REFUSALS_MAX,),
    "changes of streams and users under way": (limits.FORWARDED_REQUESTS_MAX,),
    "purges under way": (limits.TRUNCATIONS_WAITING_MAX,),
    "appends being checked": (limits.PARTITION_IN_FLIGHT_BYTES_MAX // limits.MIB,),
    "memory for requests and answers": (limits.BROKER_BUFFER_BYTES_MAX // limits.MIB,),
    "files open for answers": (),
    "users, rules of a user, credentials of a user": (
        limits.USERS_MAX,
        limits.RULES_PER_USER_MAX,
        limits.CREDENTIALS_PER_USER_MAX,
    ),
}


def rows() -> dict[str, list[str]]:
    table = PAGE.read_text().split("| what users fill |")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {what: rest for what, *rest in cells}


def test_every_table_is_there() -> None:
    assert list(rows()) == list(LIMITS)


@pytest.mark.parametrize("what", LIMITS)
def test_the_page_says_what_the_limit_is(what: str) -> None:
    most = rows()[what][0]
    found = [int(number.replace(",", "")) for number in re.findall(r"\b\d[\d,]*", most)]
    assert tuple(found[: len(LIMITS[what])]) == LIMITS[what]


def test_files_and_connections_have_the_parts_that_the_page_says() -> None:
    words = {2: "one for two files", 4: "one in four"}
    assert words[limits.CONNECTION_FILES_SHARE] in rows()["connections to a broker"][0]
    assert words[limits.ANSWER_FILES_SHARE] in rows()["files open for answers"][0]
