"""Users in the metadata: nobody can lock everybody out, and what was asked twice happens once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule, User
from penstock.access.nkeys import NkeyClient
from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.base.subjects import INTERNAL_SUBJECT_PREFIX
from penstock.metadata.commands import (
    AddPartitions,
    AlterStream,
    AlterUser,
    ChangeRules,
    Command,
    CreateStream,
    CreateUser,
    DeleteStream,
    DeleteUser,
    StartBroker,
    decode_command,
    encode_command,
)
from penstock.metadata.effects.apply import apply
from penstock.metadata.effects.streams import check_create, check_owned, check_room
from penstock.metadata.effects.users import check_create_user, check_way_in
from penstock.metadata.image import ClusterImage, CommandOutcome, OwnedStreams
from penstock.metadata.persistence.snapshot import decode_image, encode_image

ADMIN = Rule(Operation.ADMIN)
READ = Rule(Operation.READ, stream="orders")


def password(salt: bytes = b"s" * 16) -> Credential:
    return Credential("password", CredentialKind.PASSWORD, 1, None, salt, 600_000, bytes(32), bytes(32))


def token(credential_id: str) -> Credential:
    return Credential(credential_id, CredentialKind.TOKEN, 1, 5_000, b"s" * 16, 1, bytes(32), bytes(32))


def user(name: str, *rules: Rule) -> User:
    return User(name, 0, (password(),), rules)


def create(name: str, *rules: Rule, is_first: bool = False) -> CreateUser:
    return CreateUser(user=user(name, *rules), created_us=7, is_first=is_first)


class Folded:
    """An image that commands fold to; each goes through its bytes first."""

    def __init__(self) -> None:
        self.image = ClusterImage()

    def do(self, command: Command) -> CommandOutcome:
        self.image, outcome = apply(self.image, self.image.index + 1, decode_command(encode_command(command)))
        if isinstance(outcome, RemoteError):
            raise outcome
        return outcome

    def refused(self, command: Command) -> str:
        before = self.image
        with pytest.raises(RemoteError) as caught:
            self.do(command)
        assert replace(self.image, index=before.index) == before
        return caught.value.code


@pytest.fixture
def folded() -> Folded:
    folded = Folded()
    assert not folded.image.is_guarded
    assert folded.do(create("ann", ADMIN)).changed
    assert folded.image.is_guarded
    return folded


def test_the_first_user_is_an_administrator() -> None:
    folded = Folded()
    assert folded.refused(create("ann", READ)) == ErrorCode.CHANGE_REFUSED
    folded.do(create("ann", ADMIN))
    assert folded.image.administrators() == ["ann"]


def test_a_user_that_was_made_is_made_once(folded) -> None:
    assert not folded.do(create("ann", ADMIN)).changed
    assert folded.refused(create("ann", READ)) == ErrorCode.USER_EXISTS
    assert folded.refused(create("bob", ADMIN, is_first=True)) == ErrorCode.USER_EXISTS


def test_there_is_an_administrator_at_any_time(folded) -> None:
    drop = ChangeRules(name="ann", changed_us=9, drop=(ADMIN,))
    assert folded.refused(DeleteUser(name="ann", deleted_us=9)) == ErrorCode.CHANGE_REFUSED
    assert folded.refused(drop) == ErrorCode.CHANGE_REFUSED
    folded.do(create("bob", ADMIN))
    assert folded.do(drop).changed
    assert folded.do(DeleteUser(name="ann", deleted_us=9)).changed
    assert folded.image.administrators() == ["bob"]


@pytest.mark.parametrize(
    "command",
    [
        AlterUser(name="ann", altered_us=9, drop=("password",), add=(token("t1"),)),
        ChangeRules(name="ann", changed_us=9, drop=(ADMIN,)),
        DeleteUser(name="ann", deleted_us=9),
    ],
)
def test_somebody_who_rules_can_log_in_whenever_it_is(folded, command) -> None:
    """Beside ann there is an administrator whose only token expires."""
    folded.do(CreateUser(user=User("bob", 0, (token("t2"),), (ADMIN,)), created_us=7))
    with pytest.raises(RemoteError, match="would expire"):
        check_way_in(folded.image, command)
    check_way_in(folded.image, AlterUser(name="bob", altered_us=9, add=(password(),)))


def test_the_first_user_does_not_expire() -> None:
    with pytest.raises(RemoteError, match="would expire"):
        check_way_in(ClusterImage(), CreateUser(user=User("ann", 0, (token("t1"),), (ADMIN,)), created_us=7))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            AlterUser(name="ann", altered_us=9, drop=("password",), add=(token("t1"),)),
            AlterUser(name="bob", altered_us=9, drop=("password",), add=(token("t2"),)),
        ),
        (
            AlterUser(name="ann", altered_us=9, drop=("password",), add=(token("t1"),)),
            ChangeRules(name="bob", changed_us=9, drop=(ADMIN,)),
        ),
        (
            AlterUser(name="ann", altered_us=9, drop=("password",), add=(token("t1"),)),
            DeleteUser(name="bob", deleted_us=9),
        ),
    ],
)
def test_so_it_is_when_two_changes_are_on_their_way_at_once(folded, one, other) -> None:
    folded.do(create("bob", ADMIN))
    for first, second in ((one, other), (other, one)):
        check_way_in(folded.image, first)
        check_way_in(folded.image, second)
        after = Folded()
        after.image = folded.image
        assert after.do(first).changed
        assert after.refused(second) == ErrorCode.CHANGE_REFUSED


def test_what_is_about_somebody_who_does_not_rule_is_none_of_it(folded) -> None:
    folded.do(create("bob", READ))
    assert folded.do(AlterUser(name="bob", altered_us=9, drop=("password",), add=(token("t2"),))).changed
    assert folded.do(ChangeRules(name="bob", changed_us=9, drop=(READ,))).changed
    assert folded.do(DeleteUser(name="bob", deleted_us=9)).changed


def test_a_user_keeps_something_to_log_in_with(folded) -> None:
    assert folded.refused(AlterUser(name="ann", altered_us=9, drop=("password",))) == ErrorCode.CHANGE_REFUSED
    folded.do(create("bob", ADMIN))
    folded.do(AlterUser(name="ann", altered_us=9, drop=("password",), add=(token("t1"),)))
    assert [one.credential_id for one in folded.image.user("ann").credentials] == ["t1"]


def test_a_credential_takes_the_place_of_the_one_with_its_id(folded) -> None:
    folded.do(AlterUser(name="ann", altered_us=9, add=(password(b"t" * 16),)))
    (only,) = folded.image.user("ann").credentials
    assert only.salt == b"t" * 16
    assert not folded.do(AlterUser(name="ann", altered_us=9, add=(password(b"t" * 16),))).changed


def test_rules_and_quotas_change(folded) -> None:
    folded.do(create("bob"))
    folded.do(ChangeRules(name="bob", changed_us=9, add=(READ, READ)))
    assert folded.image.user("bob").rules == (READ,)
    folded.do(AlterUser(name="bob", altered_us=9, quotas=Quotas(1, 2, 3)))
    assert folded.image.user("bob").quotas == Quotas(1, 2, 3)
    assert not folded.do(ChangeRules(name="bob", changed_us=9, add=(READ,))).changed
    assert folded.refused(ChangeRules(name="nobody", changed_us=9, add=(READ,))) == ErrorCode.USER_NOT_FOUND


def test_everybody_has_rules_and_logs_in_with_nothing(folded) -> None:
    folded.do(ChangeRules(name="*", changed_us=9, add=(READ,)))
    assert folded.image.user("*").rules == (READ,)
    assert folded.image.administrators() == ["ann"]
    assert folded.do(DeleteUser(name="*", deleted_us=9)).changed


def test_nobody_has_rules_while_nobody_logs_in() -> None:
    assert Folded().refused(ChangeRules(name="*", changed_us=9, add=(READ,))) == ErrorCode.USER_NOT_FOUND


def test_a_user_that_is_made_again_is_another_one(folded) -> None:
    folded.do(create("bob"))
    before = folded.image.user("bob").made_index
    folded.do(DeleteUser(name="bob", deleted_us=9))
    folded.do(create("bob"))
    assert folded.image.user("bob").made_index > before


def test_users_are_in_the_snapshot_which_older_versions_refuse(folded) -> None:
    folded.do(ChangeRules(name="*", changed_us=9, add=(READ,)))
    data = encode_image(folded.image)
    assert decode_image(data) == folded.image
    assert msgspec.msgpack.decode(data)[0] == 3
    assert msgspec.msgpack.decode(encode_image(ClusterImage()))[0] == 1


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_snapshot_whose_users_cannot_be_is_refused(folded, at) -> None:
    fields = msgspec.msgpack.decode(encode_image(folded.image))
    users = fields[5]
    wrong = [
        [*users, *users],  # twice
        [[*users[0][:3], [], *users[0][4:]]],  # nobody rules
        [[*users[0][:2], [], *users[0][3:]]],  # nothing to log in with
        [[*users[0][:5], 99]],  # made later than now
    ][at]
    with pytest.raises(RemoteError) as caught:
        decode_image(msgspec.msgpack.encode([*fields[:5], wrong]))
    assert caught.value.code == ErrorCode.BAD_FRAME


PUBLIC_KEY = NkeyClient("SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU", "").public_key


def nkey(credential_id: str) -> Credential:
    return Credential(credential_id, CredentialKind.NKEY, 1, public_key=PUBLIC_KEY)


def test_no_id_is_there_twice_and_no_nkey_is_two_users(folded) -> None:
    assert folded.refused(AlterUser(name="ann", altered_us=9, add=(token("t"), token("t")))) == ErrorCode.CHANGE_REFUSED
    twice = CreateUser(user=User("bob", 0, (token("t"), token("t"))), created_us=9)
    assert folded.refused(twice) == ErrorCode.CHANGE_REFUSED
    folded.do(AlterUser(name="ann", altered_us=9, add=(nkey("k"),)))
    folded.do(create("bob"))
    assert folded.refused(AlterUser(name="bob", altered_us=9, add=(nkey("k"),))) == ErrorCode.CHANGE_REFUSED
    assert folded.refused(AlterUser(name="ann", altered_us=9, add=(nkey("k2"),))) == ErrorCode.CHANGE_REFUSED
    folded.do(ChangeRules(name="*", changed_us=9, add=(READ,)))
    assert folded.refused(AlterUser(name="*", altered_us=9, add=(token("t"),))) == ErrorCode.CHANGE_REFUSED
    assert decode_image(encode_image(folded.image)) == folded.image


def test_an_nkey_of_which_a_character_is_wrong_is_refused() -> None:
    wrong = Credential("k", CredentialKind.NKEY, 1, public_key=PUBLIC_KEY[:-1] + "A")
    with pytest.raises(RemoteError, match="not the public nkey"):
        check_create_user(ClusterImage(), User("bob", 0, (wrong,)))


def make(name: str, by: str = "bob") -> CreateStream:
    subject = f"{INTERNAL_SUBJECT_PREFIX}{name}" if name.startswith("__") else name
    return CreateStream(config=StreamConfig(name=name, subject=subject), created_us=7, by=by)


def owned(streams: int) -> OwnedStreams:
    """So many streams of one partition each."""
    return OwnedStreams(streams, streams, streams * limits.DEDUP_IDS_DEFAULT)


@pytest.fixture
def limited(folded) -> Folded:
    """Where bob may make two streams; there is one of before."""
    folded.do(make("old", by=""))
    folded.do(create("bob"))
    folded.do(AlterUser(name="bob", altered_us=9, quotas=Quotas(streams_max=2)))
    return folded


def delete(folded: Folded, name: str) -> None:
    folded.do(DeleteStream(stream_id=folded.image.by_name(name).stream_id))


def test_a_user_makes_no_more_streams_than_it_may(limited) -> None:
    for name in ("a", "b"):
        limited.do(make(name))
    assert limited.image.owned == {"bob": owned(2)}
    with pytest.raises(RemoteError, match="it has made 2 and its limit is 2: delete one") as caught:
        limited.do(make("c"))
    assert caught.value.details == {"user": "bob", "streams": 2, "streams_max": 2}
    with pytest.raises(RemoteError) as caught:
        check_create(limited.image, make("c").config, brokers=1, ready=1, by="bob")
    assert caught.value.code == limited.refused(make("c")) == ErrorCode.QUOTA_EXCEEDED
    assert not limited.do(make("b")).changed, "the same again makes nothing"
    delete(limited, "a")
    assert limited.do(make("c")).changed


def test_who_makes_streams_by_themselves_are_not_limited(limited) -> None:
    for name in ("a", "b"):
        limited.do(make(name))
    for command in (make("d", by="ann"), make("e", by=""), make("__offsets"), make("__staged-7")):
        assert limited.do(command).changed, command
    owners = {state.name: state.owner for state in limited.image.streams.values()}
    assert owners == {"old": "", "a": "bob", "b": "bob", "d": "ann", "e": "", "__offsets": "", "__staged-7": ""}
    limited.do(AlterUser(name="bob", altered_us=9, quotas=Quotas()))
    assert limited.do(make("f")).changed
    assert limited.image.owned == {"ann": owned(1), "bob": owned(3)}


def test_owners_are_in_the_snapshot(limited) -> None:
    for name in ("a", "b"):
        limited.do(make(name))
    limited.image = decode_image(encode_image(limited.image))
    assert limited.image.owned == {"bob": owned(2)}
    assert limited.refused(make("c")) == ErrorCode.QUOTA_EXCEEDED
    limited.do(StartBroker(started_us=9))
    assert limited.image.by_name("a").owner == "bob"


def test_streams_of_a_user_who_was_deleted_are_nobodys(limited) -> None:
    for name in ("a", "b"):
        limited.do(make(name))
    limited.do(DeleteUser(name="bob", deleted_us=9))
    assert limited.image.owned == {}
    limited.do(create("bob"))
    limited.do(AlterUser(name="bob", altered_us=9, quotas=Quotas(streams_max=1)))
    delete(limited, "b")
    assert limited.do(make("c")).changed
    assert limited.image.owned == {"bob": owned(1)}
    assert decode_image(encode_image(limited.image)) == limited.image
    delete(limited, "a")
    delete(limited, "c")
    assert limited.image.owned == {}


def more(name: str, **config: Any) -> CreateStream:
    return CreateStream(config=StreamConfig(name=name, subject=name, **config), created_us=7, by="bob")


@pytest.mark.parametrize(
    ("quotas", "fits", "beyond", "name"),
    [
        (Quotas(partitions_max=5), {"partitions": 3}, {"partitions": 3}, "partitions"),
        (Quotas(message_ids_max=50), {"partitions": 3, "dedup_ids_max": 10}, {"dedup_ids_max": 21}, "message_ids"),
    ],
)
def test_a_users_streams_come_to_no_more_than_they_may(folded, quotas, fits, beyond, name) -> None:
    folded.do(create("bob"))
    folded.do(AlterUser(name="bob", altered_us=9, quotas=quotas))
    folded.do(more("a", **fits))
    with pytest.raises(RemoteError, match=f"penstock user limit bob --{name.replace('_', '-')} N") as caught:
        check_create(folded.image, more("b", **beyond).config, brokers=1, ready=1, by="bob")
    assert caught.value.code == folded.refused(more("b", **beyond)) == ErrorCode.QUOTA_EXCEEDED
    assert caught.value.details[f"{name}_max"] == max(filter(None, (quotas.partitions_max, quotas.message_ids_max)))
    check_create(folded.image, more("b", **beyond).config, brokers=1, ready=1, by="ann")
    delete(folded, "a")
    assert folded.do(more("b", **beyond)).changed


def test_ids_that_are_not_kept_count_for_nothing(folded) -> None:
    folded.do(create("bob"))
    folded.do(AlterUser(name="bob", altered_us=9, quotas=Quotas(message_ids_max=1)))
    assert folded.do(more("a", dedup_window_ms=None)).changed
    assert folded.image.owned == {"bob": OwnedStreams(1, 1, 0)}


def test_what_a_stream_comes_to_is_counted_again_when_it_changes(folded) -> None:
    folded.do(create("bob"))
    folded.do(more("a", dedup_ids_max=10))
    stream_id = folded.image.by_name("a").stream_id
    folded.do(AddPartitions(stream_id=stream_id, before=1, assignments=((BrokerId(1),),)))
    assert folded.image.owned == {"bob": OwnedStreams(1, 2, 20)}
    folded.do(AlterStream(stream_id=stream_id, changes={"dedup_ids_max": 7}))
    assert folded.image.owned == {"bob": OwnedStreams(1, 2, 14)}
    folded.do(AlterStream(stream_id=stream_id, changes={"dedup_window_ms": None}))
    assert folded.image.owned == {"bob": OwnedStreams(1, 2, 0)}
    assert decode_image(encode_image(folded.image)) == folded.image
    folded.do(DeleteUser(name="bob", deleted_us=9))
    folded.do(AlterStream(stream_id=stream_id, changes={"dedup_ids_max": 8, "dedup_window_ms": 5}))
    assert folded.image.owned == {}


def test_of_a_stream_that_has_more_than_its_user_may_only_more_is_refused(folded) -> None:
    folded.do(create("bob"))
    folded.do(more("a", partitions=3, dedup_ids_max=10))
    folded.do(AlterUser(name="bob", altered_us=9, quotas=Quotas(partitions_max=1, message_ids_max=1)))
    state = folded.image.by_name("a")
    check_owned(folded.image, msgspec.structs.replace(state.config, dedup_ids_max=9), "bob", state)
    with pytest.raises(RemoteError, match="message ids"):
        check_owned(folded.image, msgspec.structs.replace(state.config, dedup_ids_max=11), "bob", state)
    with pytest.raises(RemoteError, match="partitions"):
        check_owned(folded.image, msgspec.structs.replace(state.config, partitions=4, dedup_ids_max=1), "bob", state)


def test_one_user_does_not_make_all_streams_or_partitions(folded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_MAX", 6)
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 12)
    folded.do(create("bob"))
    folded.do(create("eve"))

    def fits(by: str, partitions: int = 1) -> bool:
        try:
            check_room(folded.image, partitions, by)
        except RemoteError:
            return False
        return True

    assert not fits("bob", 7)
    assert fits("ann", 12)
    folded.do(more("a", partitions=4))
    assert not fits("bob", 3)
    assert fits("bob", 2)
    assert fits("eve", 3)
    for name in ("b", "c"):
        assert fits("bob")
        folded.do(more(name))
    assert not fits("bob")
    assert fits("eve")
    assert fits("ann", 6)
    assert fits("")
