"""Constants and defaults: which fit their types, what their names mean, and how large they may be."""

from __future__ import annotations

import pytest

from penstock.idl.constants import CONSTANT_VALUES_MAX, find_constant
from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError
from penstock.idl.model import Constant, Found, FoundValue
from penstock.idl.parser import NESTING_MAX

TYPES = """
enum Color { RED = 1, GREEN = 2 }
enum Other { RED = 1 }
typedef i64 Id
struct S { 1: required i32 a, 2: string b, 3: optional S s, 4: list<Color> colors, 5: required i32 c = 5 }
union U { 1: i32 a, 2: string b }
const i32 ONE = 1
const i64 BIG = 4294967296
const string TEXT = "text"
const Color GREEN_ = Color.GREEN
const list<i32> INTS = [1]
const S SOME = {a: ONE}
typedef list<Id> Ids
include "base.thrift"
"""
BASE = "const i32 TWO = 2 enum Color { BLUE = 3 } struct B { 1: i32 a } const B ZERO = {}"


def mistakes(text: str, main: str = "main.frugal") -> list[str]:
    with pytest.raises(IdlError) as caught:
        link(main, texts({main: text + TYPES, "base.thrift": BASE}))
    return [str(each).removeprefix(f"{main}:") for each in caught.value.mistakes]


@pytest.mark.parametrize(
    "text",
    [
        "bool C = true", "bool C = 0", "bool C = 1",
        "i8 C = -128", "i16 C = 32767", "i32 C = -2147483648", "i64 C = 9223372036854775807", "Id C = 0x10",
        "i8 C = ONE", "i64 C = ONE", "i32 C = Color.GREEN", "i32 C = base.TWO", "i8 C = GREEN_", "bool C = ONE",
        "double C = 1", "double C = 1.5", "double C = ONE",
        'string C = "a"', 'binary C = "a"', "binary C = TEXT", "string C = TEXT",
        'uuid C = "00112233-4455-6677-8899-aabbCCDDEEFF"', "uuid C = '{00112233-4455-6677-8899-aaBBccDDeeFF}'",
        "Color C = Color.RED", "Color C = RED", "Color C = 2", "Color C = GREEN_", "Color C = ONE",
        "base.Color C = base.Color.BLUE", "base.Color C = BLUE",
        "list<i32> C = []", "list<i32> C = {}", "set<i32> C = {}", "set<i32> C = [1, 1]", "list<Color> C = [RED, 2]",
        "list<i32> C = INTS", "map<i32, string> C = {}", 'map<i32, string> C = {1: "a", ONE_: TEXT}',
        'map<string, list<i32>> C = {TEXT: [1], "b": INTS}', "map<Color, bool> C = {Color.RED: true, 2: false}",
        "map<list<i32>, i32> C = {[1]: 1, [1]: 2}",
        "S C = {a: 1}", 'S C = {"a": 1, "b": TEXT, s: {a: 2}, colors: [GREEN]}', "S C = SOME",
        "list<S> C = [SOME, {a: 3}]",
        "U C = {a: 1}", 'U C = {"b": "x"}', "base.B C = base.ZERO",
    ],
)  # fmt: skip
def test_what_fits(text: str) -> None:
    text = f"const {text}\nconst i32 ONE_ = 11\n"
    link("main.frugal", texts({"main.frugal": text + TYPES, "base.thrift": BASE}))
    field = f"struct Field {{ 1: {text.partition(chr(10))[0].removeprefix('const ')} }}\nconst i32 ONE_ = 11\n"
    link("main.frugal", texts({"main.frugal": field + TYPES, "base.thrift": BASE}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bool C = 2", "1:16: true or false is expected, not 2"),
        ('bool C = "true"', "1:16: true or false is expected, not 'true'"),
        ("i8 C = 128", "1:14: a number from -128 to 127 (i8) is expected, not 128"),
        ("i16 C = -32769", "1:15: a number from -32,768 to 32,767 (i16) is expected, not -32769"),
        ("i32 C = BIG", "1:15: a number from -2,147,483,648 to 2,147,483,647 (i32) is expected, not 4294967296"),
        ("i32 C = 1.0", "1:15: a whole number (i32) is expected, not 1.0"),
        ("i32 C = true", "1:15: a whole number (i32) is expected, not true"),
        ("i32 C = [1]", "1:15: a whole number (i32) is expected, not a list"),
        ("i32 C = TEXT", "1:15: a whole number (i32) is expected, not 'text'"),
        ('double C = "1"', "1:18: a number (double) is expected, not '1'"),
        ("string C = 1", "1:18: text in quotes (string) is expected, not 1"),
        ("string C = text", '1:18: there is no constant or value of an enum "text" (text is written in quotes)'),
        ("string C = Color.RED", '1:18: a constant of type string is expected, not a value of "Color"'),
        ("uuid C = 'x'", "1:16: a UUID, such as 00000000-0000-0000-0000-000000000000, is expected, not 'x'"),
        (
            "uuid C = '{00112233-4455-6677-8899-aaBBccDDeeFF'",
            "1:16: a UUID, such as 00000000-0000-0000-0000-000000000000, is expected, not "
            "'{00112233-4455-6677-8899-aaBBccDDeeFF'",
        ),
        ("Color C = 3", '1:17: "Color" has no value with the number 3'),
        ('Color C = "RED"', "1:17: a value of \"Color\" is expected, not 'RED'"),
        ("Color C = BLUE", '1:17: there is no constant or value of an enum "BLUE"'),
        ("Color C = Colour.RED", '1:17: there is no constant or value of an enum "Colour.RED"'),
        ("Color C = Other.RED", '1:17: a constant of type "Color" is expected, not a value of "Other"'),
        ("Color C = base.Color.BLUE", '1:17: a constant of type "Color" is expected, not a value of "Color"'),
        ("Color C = BIG", '1:17: "Color" has no value with the number 4294967296'),
        ("Color C = INTS", '1:17: a constant of type "Color" is expected, and "INTS" has another type'),
        ("i32 C = base.GONE", '1:15: there is no constant or value of an enum "base.GONE"'),
        ("i32 C = S", '1:15: there is no constant or value of an enum "S"'),
        ("list<i32> C = 1", "1:21: a list, such as [1, 2], is expected, not 1"),
        ("list<i32> C = {1: 2}", "1:21: a list, such as [1, 2], is expected, not a map"),
        ('list<i32> C = [1, "a"]', "1:25: a whole number (i32) is expected, not 'a'"),
        ("Ids C = INTS", '1:15: a list of the same type is expected, and "INTS" has another type'),
        ("set<i32> C = INTS", '1:20: a set of the same type is expected, and "INTS" has another type'),
        ("map<i32, i32> C = INTS", '1:25: a map of the same type is expected, and "INTS" has another type'),
        ("map<i32, i32> C = [1]", '1:25: a map, such as {"a": 1}, is expected, not a list'),
        ("map<i32, i32> C = {1: 1, ONE: 2}", '1:32: the map has the key "ONE" already'),
        ('map<string, i32> C = {"a": 1, "a": 2}', "1:37: the map has the key 'a' already"),
        ("map<Color, i32> C = {RED: 1, 1: 2}", "1:36: the map has the key 1 already"),
        (
            "map<string, i32> C = {a: 1}",
            '1:29: there is no constant or value of an enum "a" (text is written in quotes)',
        ),
        ("S C = 1", '1:13: a map with the fields of "S" is expected, not 1'),
        ("S C = {a: 1, x: 2}", '1:20: "S" has no field "x"'),
        ('S C = {a: 1, "a": 2}', '1:20: the field "a" is given twice'),
        ("S C = {1: 1}", '1:14: the name of a field of "S" is expected, not 1'),
        ("S C = {a: TEXT}", "1:17: a whole number (i32) is expected, not 'text'"),
        ("S C = {}", '1:13: the field "a" of "S" is required; give it'),
        ("S C = INTS", '1:13: a constant of type "S" is expected, and "INTS" has another type'),
        ("U C = {}", '1:13: "U" is a union: give one field, not 0'),
        ('U C = {a: 1, b: "x"}', '1:13: "U" is a union: give one field, not 2'),
        ("i32 C = C", '1:11: the constant or default needs itself: "C" needs "C"'),
    ],
)
def test_what_does_not_fit(text: str, expected: str) -> None:
    assert mistakes(f"const {text}") == [expected]


def test_defaults_are_checked_as_constants_are() -> None:
    text = "struct D { 1: i8 a = 300, 2: S s = {a: x} }\nservice V { void m(1: Color c = 9) }\n"
    assert mistakes(text) == [
        "1:22: a number from -128 to 127 (i8) is expected, not 300",
        '1:40: there is no constant or value of an enum "x"',
        '2:33: "Color" has no value with the number 9',
    ]


def test_in_a_thrift_file_the_last_word_of_an_enums_value_is_enough() -> None:
    files = {"main.thrift": "const Color C = Colour.RED" + TYPES, "base.thrift": BASE}
    program = link("main.thrift", texts(files))
    found = find_constant(program, "Colour.RED", program.resolve(next(program.document.constants).type))
    assert isinstance(found, FoundValue)
    assert (found.enum.name, found.value.number) == ("Color", 1)
    assert mistakes("const Color C = Other.RED", "main.thrift") == [
        '1:17: a constant of type "Color" is expected, not a value of "Other"'
    ]


def test_names_mean_constants_before_values_of_enums() -> None:
    text = 'enum E { A = 1, B = 2 } const E A = E.B const E C = A include "base.thrift"'
    program = link("main.frugal", texts({"main.frugal": text, "base.thrift": BASE}))
    expected = program.resolve(next(program.document.constants).type)
    named, value, of_base = (find_constant(program, name, expected) for name in ("A", "B", "base.TWO"))
    assert isinstance(named, Found)
    assert isinstance(named.definition, Constant)
    assert isinstance(value, FoundValue)
    assert value.value.number == 2
    assert isinstance(of_base, Found)
    assert of_base.program.document.file == "base.thrift"
    assert find_constant(program, "B") is None
    assert find_constant(program, "E.C", expected) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("const i32 A = B const i32 B = A", ['1:11: the constant or default needs itself: "A" needs "B" needs "A"']),
        (
            "const list<i32> A = [1, B] const i32 B = 1 const S X = {a: 1, colors: Y} const list<Color> Y = Z "
            "const list<Color> Z = Y",
            ['1:92: the constant or default needs itself: "Y" needs "Z" needs "Y"'],
        ),
        ("struct D { 1: D d = {} }", ['1:8: the constant or default needs itself: "D" needs "D"']),
        (
            "struct D { 1: optional list<F> f = [{}] } struct F { 1: D d = X } const D X = {}",
            ['1:8: the constant or default needs itself: "D" needs "F" needs "X" needs "D"'],
        ),
    ],
)
def test_constants_that_need_themselves(text: str, expected: list[str]) -> None:
    assert mistakes(text) == expected


def test_constants_grow_to_a_limit() -> None:
    def tower(height: int) -> str:
        types = "".join(f"typedef list<L{number}> L{number + 1}\n" for number in range(height))
        constants = (f"const L{number + 1} C{number + 1} = [{f'C{number},' * 10}]\n" for number in range(height))
        return f"typedef list<i32> L0\nconst L0 C0 = [1]\n{types}{''.join(constants)}"

    link("main.frugal", texts({"main.frugal": tower(4)}))
    with pytest.raises(IdlError) as caught:
        link("main.frugal", texts({"main.frugal": tower(8)}))
    assert str(caught.value) == (
        f'main.frugal:15:10: "C5" is too large: with all that it names it has more than {CONSTANT_VALUES_MAX:,} values'
    )
    chain = "".join(f"const i32 C{number} = C{number + 1}\n" for number in range(1_000)) + "const i32 C1000 = 1"
    with pytest.raises(IdlError) as caught:
        link("main.frugal", texts({"main.frugal": chain}))
    assert caught.value.mistakes[-1].text.endswith(f"it is nested more than {NESTING_MAX} deep")
