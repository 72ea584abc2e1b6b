"""Mistyped annotations are told, and values that mean nothing are refused: what was meant would be lost in silence."""

from __future__ import annotations

import warnings

import pytest

from penstock.idl.annotations import near_misses
from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError, IdlWarning, Mistakes
from penstock.idl.python.load import load_text


def misses(text: str) -> list[str]:
    return [str(each) for each in near_misses(link("a.frugal", texts({"a.frugal": text})).closure())]


@pytest.mark.parametrize(
    ("text", "told", "meant"),
    [
        ('scope S { Op: string (strem = "s") }', "1:23", '"strem" means nothing to Penstock; did you mean "stream"?'),
        ('scope S { Op: string } (Stream = "s")', "1:25", 'did you mean "stream"?'),
        ('scope S { Op: string (stream = "s", partitionBy = "key") }', "1:37", 'did you mean "partition_by"?'),
        ("struct T { 1: i32 a (kye) }", "1:22", 'did you mean "key"?'),
        ("exception E { 1: i32 a (keys) }", "1:25", 'did you mean "key"?'),
        ("service S { void a() (idempotant) }", "1:23", 'did you mean "idempotent"?'),
        ("service S { void a() } (depreciated)", "1:25", 'did you mean "deprecated"?'),
    ],
)
def test_a_name_near_a_known_one_is_told_with_its_place(text: str, told: str, meant: str) -> None:
    (found,) = misses(text)
    assert found.startswith(f"a.frugal:{told}: the annotation ")
    assert meant in found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "struct T { 1: string (key) id }",
            'the annotation "key" stands on the type; write it at the end, behind "id"',
        ),
        ("service S { i32 (idempotent) add() }", 'the annotation "idempotent" stands on the type; write it at the end'),
    ],
)
def test_an_annotation_on_the_type_is_told(text: str, told: str) -> None:
    (found,) = misses(text)
    assert told in found


def test_annotations_of_other_programs_are_allowed() -> None:
    fields = 'struct T { 1: i32 a (go.tag = "json", api.key = "1", sensitive, min = "3") }\n'
    methods = 'service S { void a() (timeout = "3", auth) } (owner = "me")\n'
    assert misses(f'{fields}{methods}scope E {{ A: T (topic = "t", retries = "3") }} (team = "x")') == []


def test_known_annotations_are_no_misses() -> None:
    fields = "struct T { 1: i32 a (key, deprecated) }\nservice S { void a() (idempotent) }\n"
    assert misses(f'{fields}scope E {{ A: T (stream = "s", key = "a", partition_by = "key", deprecated) }}') == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'service S { void a() (idempotent = "maybe") }',
            "a.frugal:1:23: idempotent is 'maybe'; write (idempotent) for yes, or (idempotent = \"false\")",
        ),
        (
            'struct T { 1: i32 a (key = "no") }',
            "a.frugal:1:22: key is 'no'; write (key) for yes, or (key = \"false\")",
        ),
    ],
)
def test_a_value_that_is_neither_true_nor_false_is_a_mistake(text: str, told: str) -> None:
    with pytest.raises(IdlError) as caught:
        link("a.frugal", texts({"a.frugal": text}))
    assert str(caught.value) == told
    # An older version cannot be mended, so it is compared.
    noted = Mistakes()
    link("a.frugal", texts({"a.frugal": text}), contradictions=noted)
    assert list(map(str, noted)) == [told]


@pytest.mark.parametrize("value", ["", ' = "true"', ' = "False"', ' = ""'])
def test_values_of_flags(value: str) -> None:
    text = f"service S {{ void a() (idempotent{value}) }}\nstruct T {{ 1: i32 a (key{value}) }}"
    link("a.frugal", texts({"a.frugal": text}))


def test_a_load_warns_at_its_caller() -> None:
    with pytest.warns(IdlWarning, match='contract.frugal:1:23: the annotation "strem"') as caught:
        load_text('scope S { Op: string (strem = "s") }')
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_text('scope S { Op: string (stream = "s") }')
