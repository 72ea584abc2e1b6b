"""Mistakes in IDL files: the place and the words of each, and that the parser goes on behind it."""

from __future__ import annotations

import pytest

from penstock.idl.lexer import FILE_BYTES_MAX, TOKENS_MAX
from penstock.idl.mistakes import MISTAKES_MAX, IdlError, Mistakes
from penstock.idl.parser import NAME_CHARS_MAX, NESTING_MAX, PREFIX_CHARS_MAX, parse, parse_into


def mistakes(text: str, file: str = "a.frugal") -> list[str]:
    with pytest.raises(IdlError) as caught:
        parse(text, file)
    assert str(caught.value) == "\n".join(
        [*map(str, caught.value.mistakes), *(["and more"] if caught.value.more else [])]
    )
    return [str(each).removeprefix(f"{file}:") for each in caught.value.mistakes]


_DECLARATION = 'a declaration, such as "struct" or "service", is expected, not '


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Files.
        ("hello", f'1:1: {_DECLARATION}"hello"'),
        ('"struct"', f'1:1: {_DECLARATION}"struct"'),
        ("  12", f'1:3: {_DECLARATION}"12"'),
        ("}", '1:1: "}" closes nothing'),
        ("struct A {}}", '1:12: "}" closes nothing'),
        ("€", r"1:1: '\u20ac' begins no name, number or text"),
        ("/* open", '1:1: the comment has no end; close it by "*/"'),
        ("senum E {}", '1:1: "senum" is no longer there; write "enum", or constants of type string'),
        ("cpp_namespace x", '1:1: "cpp_namespace" is no longer there; write "namespace cpp …"'),
        ("py_module x", '1:1: "py_module" is no longer there; write "namespace py …"'),
        # Headers.
        (
            "namespace",
            '1:10: the language of the namespace, such as "py", or "*", is expected, not the end of the file',
        ),
        ("namespace py", '1:13: the package for "py" is expected, not the end of the file'),
        ('namespace "py" x', '1:11: the language of the namespace, such as "py", or "*", is expected, not "py"'),
        ("namespace py a\nnamespace py b", '2:11: line 1 has a namespace for "py" already'),
        (
            "namespace * a (vendor)",
            '1:11: a namespace for "*" cannot have "vendor": a vendored package is that of one language',
        ),
        ("include base", '1:9: the path of the file, in quotes, is expected, not "base"'),
        (
            'include "base.proto"',
            '1:9: the included file \'base.proto\' is no IDL file; its name must end with ".frugal" or ".thrift"',
        ),
        (
            'include "a/.thrift"',
            '1:9: the included file \'a/.thrift\' is no IDL file; its name must end with ".frugal" or ".thrift"',
        ),
        (
            'include "b.frugal"\ninclude "sub/b.thrift"',
            '2:9: "b" is included already, in line 1; its names would mean two things',
        ),
        # Names.
        ("struct list {}", '1:8: "list" is a word of the language; choose another name for the struct'),
        ("struct a.b {}", '1:8: the name "a.b" has a dot; the struct is named by one word'),
        (f"struct {'a' * 256} {{}}", f'1:8: the name "{"a" * 40}…" has 256 characters; {NAME_CHARS_MAX} are the most'),
        ("struct 1 {}", '1:8: the name of the struct is expected, not "1"'),
        ("struct A {} enum A {}", '1:18: the enum "A" has the name of what line 1 declares'),
        ("const i32 A = 1\nservice A {}", '2:9: the service "A" has the name of what line 1 declares'),
        ("service foo {}\nservice Foo {}", '2:9: "Foo" and "foo" of line 1 are the same but for their first letter'),
        ("scope foo {}\nscope Foo {}", '2:7: "Foo" and "foo" of line 1 are the same but for their first letter'),
        # Types.
        ("typedef void T", '1:9: "void" is no type of a value; only a method returns it'),
        ("typedef slist T", '1:9: "slist" is no type any more; write "string"'),
        ("typedef struct T", '1:9: a type is expected, not "struct"'),
        ("typedef 1 T", '1:9: a type is expected, not "1"'),
        ("typedef list T", '1:14: "<" behind "list" is expected, not "T"'),
        ("typedef list<i32 T", '1:18: ">" at the end of the list\'s type is expected, not "T"'),
        ("typedef map<i32> T", '1:16: "," between the types of a map\'s keys and values is expected, not ">"'),
        ("typedef list<void> T", '1:14: "void" is no type of a value; only a method returns it'),
        ("typedef i32", "1:12: the name of the type is expected, not the end of the file"),
        # Constants.
        ("const i32 A 1", '1:13: "=" behind "A" is expected, not "1"'),
        ("const i32 A = ;", '1:15: "{" or another constant is expected, not ";"'),
        ("const i32 A = {1 2}", '1:18: ":" between a key and its value is expected, not "2"'),
        ("const i32 A = 1 (a = b)", '1:22: the value of the annotation, in quotes, is expected, not "b"'),
        ("const i32 A = 1 (1)", '1:18: the name of an annotation is expected, not "1"'),
        ('const string A = "a\nstruct B {}', '1:18: the text has no end on its line; close it by "'),
        # Enums.
        ("enum E { A = x }", '1:14: the number of "A" is expected, not "x"'),
        ("enum E { A = 2147483648 }", '1:10: the number 2147483648 of "A" does not fit 32 bits'),
        ("enum E { A = 2147483647, B }", '1:26: the number 2147483648 of "B" does not fit 32 bits'),
        ("enum E { A, A }", '1:13: "E" has a value "A" already'),
        (
            "enum E { A = -1 }",
            '1:10: the number of "A" is -1: Frugal\'s compiler changes a negative one; give one from 0 on',
        ),
        (
            "enum E { A = 5, B = 1, C }",
            '1:24: "C" has no number: Thrift reads it as 2, Frugal\'s compiler as 6; give it a number',
        ),
        # Structs.
        ("struct A", '1:9: "{" behind "A" is expected, not the end of the file'),
        (
            "struct A { string name }",
            '1:12: "string" begins a field without an id; write one in front of it, such as "1: string name"',
        ),
        ("struct A { ? }", "1:12: '?' begins no name, number or text"),
        ("struct A { 0: i32 a }", "1:12: the id 0 is none of a field; give one from 1 to 32,767"),
        ("struct A { -1: i32 a }", "1:12: the id -1 is none of a field; give one from 1 to 32,767"),
        ("struct A { 32768: i32 a }", "1:12: the id 32768 is none of a field; give one from 1 to 32,767"),
        ("struct A { 1 i32 a }", '1:14: ":" between a field\'s id and its type is expected, not "i32"'),
        ("struct A { 1: i32 }", '1:19: the name of the field is expected, not "}"'),
        ("struct A { 1: i32 a, 1: i32 b }", '1:22: the id 1 of "b" is that of "a" already'),
        ("struct A { 1: i32 a, 2: i32 a }", '1:22: the struct "A" has "a" already, with the id 1'),
        ("union A { 1: i32 a = 1, 2: i32 b = 2 }", '1:25: "b" is one more field with a default; a union has one value'),
        # Services.
        ("service S extends { }", '1:19: the service that "S" extends is expected, not "{"'),
        ("service S { void a }", '1:20: "(" behind "a" is expected, not "}"'),
        ("service S { void a() void a() }", '1:27: "S" has the method "a" already'),
        ("service S { void a() void A() }", '1:27: "S" has the method "a" already, and "A" is the same on the wire'),
        ("service S { void a(1: i32 a, 1: i32 b) }", '1:30: the id 1 of "b" is that of "a" already'),
        ("service S { void a() throws 1 }", '1:29: "(" behind "throws" is expected, not "1"'),
        ("service S { oneway i32 a() }", '1:24: "a" is oneway, so it returns nothing; write "oneway void a"'),
        (
            "service S { oneway void a() throws (1: E e) }",
            '1:25: "a" is oneway, so no answer brings its exceptions; leave out "throws" or "oneway"',
        ),
        # Scopes.
        ("scope S { A }", '1:13: ":" behind "A", then the type of its message, is expected, not "}"'),
        ("scope S { A: i32 A: i64 }", '1:18: "S" has the operation "A" already'),
        ("scope S { a: i32 A: i64 }", '1:18: "S" has the operation "a" already, and "A" is the same on the wire'),
        ("scope S prefix {A: i32}", '1:16: a prefix, such as "orders.{region}", is expected, not "{"'),
        (
            "scope S prefix a.{1b} {}",
            "1:16: the variable '{1b}' of the prefix needs a name of letters, digits and _, a letter first",
        ),
        (
            "scope S prefix a.{} {}",
            "1:16: the variable '{}' of the prefix needs a name of letters, digits and _, a letter first",
        ),
        (
            "scope S prefix {a-b} {}",
            "1:16: the variable '{a-b}' of the prefix needs a name of letters, digits and _, a letter first",
        ),
        ("scope S prefix {a}.{a} {}", "1:16: the variable '{a}' is in the prefix twice"),
        ("scope S prefix a.*.b {}", "1:16: the token '*' of the prefix cannot be part of a subject"),
        ("scope S prefix a.> {}", "1:16: the token '>' of the prefix cannot be part of a subject"),
        (
            f"scope S prefix {'a' * 1025} {{}}",
            f"1:16: the prefix has 1,025 characters; {PREFIX_CHARS_MAX:,} are the most",
        ),
    ],
)
def test_one_mistake(text: str, expected: str) -> None:
    assert mistakes(text)[0] == expected


def test_keywords_name_no_methods_and_enum_values_of_thrift() -> None:
    assert mistakes("enum E { string }\nservice S { void list() }", "a.thrift") == [
        '1:10: "string" is a word of the language; choose another name for a value of "E"',
        '2:18: "list" is a word of the language; choose another name for the method',
    ]


def test_several_mistakes_of_one_file_are_told_in_order() -> None:
    text = """\
struct Order {
  1: i64 id
  string customer
  3: list<i32 lines
  4: required bool paid, 4: bool sent
  5: i32 sum = [1, , 2]
  6: i64 last
}

hello world
enum Color { RED = , GREEN }

service Orders {
  void place(1: Order order, 2 i32 count)
  i32 count(
    1: i32 first,
    second,
  )
  void 7()
}
scope Events prefix a.{1} {
  Placed Order
  Paid: void
}
"""
    assert mistakes(text) == [
        '3:3: "string" begins a field without an id; write one in front of it, such as "1: string name"',
        '4:15: ">" at the end of the list\'s type is expected, not "lines"',
        '5:26: the id 4 of "sent" is that of "paid" already',
        '6:20: "{" or another constant is expected, not ","',
        f'10:1: {_DECLARATION}"hello"',
        '11:20: the number of "RED" is expected, not ","',
        '14:32: ":" between a field\'s id and its type is expected, not "i32"',
        '17:5: "second" begins a field without an id; write one in front of it, such as "1: string name"',
        '19:8: the name of the method is expected, not "7"',
        "21:21: the variable '{1}' of the prefix needs a name of letters, digits and _, a letter first",
        '22:10: ":" behind "Placed", then the type of its message, is expected, not "Order"',
        '23:9: "void" is no type of a value; only a method returns it',
    ]


@pytest.mark.parametrize(
    ("head", "owner"),
    [
        ("struct A {\n  1: i32 a", 'the struct "A"'),
        ("enum A {\n  B", 'the enum "A"'),
        ("service A {\n  void a()", 'the service "A"'),
        ("scope A {\n  a: i32", 'the scope "A"'),
    ],
)
def test_a_body_that_is_not_closed_ends_where_the_next_declaration_begins(head: str, owner: str) -> None:
    text = f'"}}" is missing: {owner}, whose "{{" is in line 1, is not closed'
    assert mistakes(f"{head}\nstruct B {{ 1: i32 a, 1: i32 b }}") == [
        f"3:1: {text}",
        '3:22: the id 1 of "b" is that of "a" already',
    ]
    assert mistakes(head) == [f"2:{len(head.split(chr(10))[1]) + 1}: {text}"]


def test_mistakes_beyond_the_limit_are_counted_no_more() -> None:
    with pytest.raises(IdlError) as caught:
        parse("struct A {" + "x\n" * 1_000 + "}", "a.frugal")
    assert len(caught.value.mistakes) == MISTAKES_MAX
    assert caught.value.more
    assert str(caught.value).endswith("\nand more")


@pytest.mark.parametrize("open_", ["list<", "set<", "map<i32,"])
def test_types_are_nested_to_a_limit(open_: str) -> None:
    def nested(depth: int) -> str:
        return f"typedef {open_ * (depth - 1)}i32{'>' * (depth - 1)} T"

    parse(nested(NESTING_MAX), "a.frugal")
    (mistake,) = mistakes(nested(NESTING_MAX + 1))
    column = 9 + (NESTING_MAX - 1) * len(open_) + open_.index("<") + 1  # of a map it is the key
    assert mistake == f"1:{column}: types are nested more than {NESTING_MAX} deep"
    assert mistakes(f"typedef {open_ * 20_000}")[0] == mistake


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ("{1:", "}"), ("{", ":1}")])
def test_constants_are_nested_to_a_limit(open_: str, close: str) -> None:
    def nested(depth: int) -> str:
        return f"const T C = {open_ * (depth - 1)}1{close * (depth - 1)}"

    parse(nested(NESTING_MAX), "a.frugal")
    assert mistakes(nested(NESTING_MAX + 1))[0].endswith(f"constants are nested more than {NESTING_MAX} deep")
    assert mistakes(f"const T C = {open_ * 20_000}")[0].endswith(f"constants are nested more than {NESTING_MAX} deep")


def test_files_have_a_limit_of_bytes_and_tokens() -> None:
    parse(" " * FILE_BYTES_MAX, "a.frugal")
    assert mistakes("é" * (FILE_BYTES_MAX // 2) + "a") == [
        f"1:1: the file has {FILE_BYTES_MAX + 1:,} bytes; {FILE_BYTES_MAX:,} are the most of one"
    ]
    text = "const T C = [" + "1 " * (TOKENS_MAX - 5)
    assert mistakes(text + "1 ]") == [
        f"1:{len(text) + 1}: the file has too many tokens: one has 250,000 at most, all files together 500,000"
    ]


def test_a_file_may_have_as_many_tokens_as_the_limit_says() -> None:
    found = Mistakes()
    document, tokens = parse_into(found, "const T C = [1 2 3]", "a.frugal", tokens_max=9)
    assert (document is not None, tokens, len(found)) == (True, 9, 0)
    document, tokens = parse_into(found, "const T C = [1 2 3]", "a.frugal", tokens_max=8)
    assert (document is None, tokens) == (True, 8)
    assert [str(each).partition(" too many")[0] for each in found] == ["a.frugal:1:19: the file has"]


def test_text_that_is_no_unicode() -> None:
    assert mistakes('const string A = "\ud800"') == ["1:1: the file is no text of Unicode"]


def test_the_error_is_a_value_error_that_can_be_pickled() -> None:
    import pickle

    with pytest.raises(ValueError, match=r"a\.frugal:1:1: ") as caught:
        parse("x", "a.frugal")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copied, IdlError)
    assert copied.mistakes == caught.value.mistakes  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'scope Toks prefix tk.{region} (stream = "toks") { A: i32 }',
            'a.frugal:1:31: the annotations of "Toks" stand behind the "}" that closes it',
        ),
        ("service S (deprecated) {}", 'a.frugal:1:11: the annotations of "S" stand behind the "}" that closes it'),
        ("struct S (deprecated) {}", 'a.frugal:1:10: the annotations of "S" stand behind the "}" that closes it'),
        ("enum E (deprecated) {}", 'a.frugal:1:8: the annotations of "E" stand behind the "}" that closes it'),
        (
            "exception E {}\nservice S { void a() (idempotent) throws (1: E e) }",
            'a.frugal:2:35: "throws" of "a" stands in front of its annotations',
        ),
    ],
)
def test_annotations_in_another_place_are_told_where_they_stand(text: str, told: str) -> None:
    with pytest.raises(IdlError) as caught:
        parse(text, "a.frugal")
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("shop.proto", "message Order {}"),
        ("shop.frugal", 'syntax = "proto3";'),
        ("shop.frugal", '// A comment\n/* and * another */\nedition = "2023";'),
    ],
)
def test_protobuf_is_told_how_it_is_read(file: str, text: str) -> None:
    with pytest.raises(IdlError) as caught:
        parse(text, file)
    assert str(caught.value).startswith(f"{file}:1:1: this is Protobuf's language")
    assert "--descriptor_set_out" in str(caught.value)
