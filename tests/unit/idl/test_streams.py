"""What a contract says of streams is checked when it is linked, whichever language or command comes after."""

from __future__ import annotations

import pytest

from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError
from penstock.idl.streams import FIELDS_SEARCHED_MAX
from penstock.schemas.contracts import frugal_program
from penstock.schemas.plans import SchemaError

KEYED = "struct T { 1: i32 from (key) }\n"


def mistakes(text: str, **files: str) -> list[str]:
    everything = {"a.frugal": text, **{f"{name}.frugal": other for name, other in files.items()}}
    try:
        link("a.frugal", texts(everything))
    except IdlError as error:
        return [str(each) for each in error.mistakes]
    return []


def test_what_fits_together_is_linked() -> None:
    assert mistakes(KEYED + 'scope S { A: T (stream = "s", partition_by = "key") B: T (stream = "s") }') == []
    assert mistakes('struct T { 1: i32 a }\nscope S { A: T (stream = "s", partition_by = "group") }') == []


def test_all_contradictions_of_a_contract_are_told_with_their_places() -> None:
    scope = 'scope S {\n  A: T (partition_by = "key")\n  B: T (stream = "s", partition_by = "group")\n'
    found = mistakes(f'{KEYED}{scope}  C: T (stream = "no such.name", key = "b")\n}}')
    places = ["a.frugal:3:3", "a.frugal:4:3", "a.frugal:5:3", "a.frugal:5:3"]
    assert [each.partition(": ")[0] for each in found] == places
    assert "partition_by = 'key' of \"A\" splits no stream" in found[0]
    # The field's name as it is written, not that of a language.
    assert "it has the key from, whose messages are in order" in found[1]
    assert "the key 'b' is not there" in found[2]
    assert 'the stream of "C": the name' in found[3]


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ('stream = "s", partition_by = "colour"', "is not one of publisher"),
        ('stream = "s", partition_by = "publisher"', "gives each partition a subject of its own"),
        ('stream = "s", partition_by = "group"', "puts a message into a log at random"),
    ],
)
def test_annotations_of_the_scope_count_for_its_operations(annotations: str, text: str) -> None:
    (found,) = mistakes(f"{KEYED}scope S {{ A: T }} ({annotations})")
    assert found.startswith("a.frugal:2:11: ")
    assert text in found


def test_an_operation_overrides_its_scope() -> None:
    scope = 'scope S { A: T (partition_by = "key") } (stream = "s", partition_by = "group")'
    assert mistakes(KEYED + scope) == []


def test_an_operation_cannot_leave_the_stream_of_its_scope() -> None:
    """`(stream)` and `(stream = "")` are one: a forgotten name must not make the event live."""
    scope = 'scope S { A: T (stream = "") B: T } (stream = "s", partition_by = "key")'
    text = '"A" cannot leave the stream of its scope; move it to a scope without (stream = "…")'
    assert mistakes(KEYED + scope) == [f"a.frugal:2:11: {text}"]


def test_an_empty_stream_is_one_mistake() -> None:
    text = 'the stream of "A" is empty; name one: (stream = "orders"), or leave the annotation out'
    assert mistakes(f"{KEYED}scope S {{ A: T (stream) }}") == [f"a.frugal:2:11: {text}"]
    assert mistakes(f'{KEYED}scope S {{ A: T (partition_by = "key") }} (stream = "")') == [f"a.frugal:2:11: {text}"]


def test_splits_of_one_stream_are_compared_over_all_files() -> None:
    other = 'struct U { 1: i32 a }\nscope B { A: U (stream = "s", partition_by = "group") }'
    text = f'include "b.frugal"\n{KEYED}scope S {{ A: T (stream = "s", partition_by = "key") }}'
    (found,) = mistakes(text, b=other)
    assert "contradicts partition_by = 'group' of the same stream 's'" in found


def test_a_marked_struct_with_two_keys_is_one_mistake() -> None:
    (found,) = mistakes("struct C { 1: i32 a (key) 2: i32 b (key) }\nstruct T { 1: C c (key) }\nscope S { A: T }")
    assert "two keys, c.a and c.b" in found


def test_the_search_for_keys_ends() -> None:
    fields = 3_000
    wide = "struct W {\n" + "\n".join(f"{each}: i32 f{each}" for each in range(1, fields + 1)) + "\n}\n"
    operations = FIELDS_SEARCHED_MAX // fields + 1
    scope = "scope S {\n" + "\n".join(f"O{each}: W" for each in range(operations)) + "\n}"
    assert mistakes(wide + scope) == []  # no field is marked, so there is nothing to search for
    (found,) = mistakes(KEYED + wide + scope)
    assert f"looks at more than {FIELDS_SEARCHED_MAX:,} fields" in found


def test_the_registry_refuses_what_the_compiler_refuses() -> None:
    with pytest.raises(SchemaError, match=r"contract\.frugal:2:11: partition_by = .* splits no stream"):
        frugal_program(KEYED + 'scope S { A: T (partition_by = "key") }', ())
