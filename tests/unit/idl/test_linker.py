"""Linking: includes, what names of types and services mean, and the rules that need the whole program."""

from __future__ import annotations

import pytest

from penstock.idl.checks import EXTENDS_MAX, TYPE_PARTS_MAX
from penstock.idl.files import PATH_CHARS_MAX, texts
from penstock.idl.linker import FILES_MAX, INCLUDE_DEPTH_MAX, link, link_all, link_document
from penstock.idl.mistakes import IdlError, Mistakes
from penstock.idl.model import Enum, Program, Scalar, ScalarKind, Service, Struct, closure
from penstock.idl.parser import NESTING_MAX, parse


def linked(*contents: str, **files: str) -> Program:
    """Link main.frugal, whose lines are `contents`; `files` are beside it, named without their suffix."""
    everything = {"main.frugal": "\n".join(contents), **{f"{name}.frugal": text for name, text in files.items()}}
    return link("main.frugal", texts(everything))


def mistakes(*contents: str, **files: str) -> list[str]:
    with pytest.raises(IdlError) as caught:
        linked(*contents, **files)
    return [str(each) for each in caught.value.mistakes]


class CountingReader:
    def __init__(self, files: dict[str, str]) -> None:
        self.read: list[str] = []
        self._files = files

    def __call__(self, path: str) -> str:
        self.read.append(path)
        return texts(self._files)(path)


def test_a_diamond_is_read_once() -> None:
    reader = CountingReader(
        {
            "idl/main.frugal": 'include "left.frugal" include "right.frugal" struct S { 1: left.L l, 2: right.R r }',
            "idl/left.frugal": 'include "sub/base.frugal" typedef base.B L',
            "idl/right.frugal": 'include "../idl/sub/base.frugal" typedef base.B R',
            "idl/sub/base.frugal": "struct B {}",
        }
    )
    program = link("idl/main.frugal", reader)
    assert reader.read == ["idl/main.frugal", "idl/left.frugal", "idl/sub/base.frugal", "idl/right.frugal"]
    assert program.includes["left"].includes["base"] is program.includes["right"].includes["base"]
    assert [each.document.file for each in program.closure()] == [
        "idl/sub/base.frugal",
        "idl/left.frugal",
        "idl/right.frugal",
        "idl/main.frugal",
    ]
    struct = program.find("S")
    assert struct is not None
    assert isinstance(struct.definition, Struct)
    owner, type_ = program.resolve(struct.definition.fields[0].type)
    assert owner.document.file == "idl/sub/base.frugal"
    assert isinstance(type_, Struct)
    assert type_.name == "B"


def test_includes_are_looked_for_beside_the_file_then_below_the_roots() -> None:
    files = {
        "a/main.frugal": 'include "x.frugal" include "sub/y.frugal" include "z.frugal"',
        "a/x.frugal": "",
        "b/x.frugal": "",
        "b/sub/y.frugal": "",
        "c/z.frugal": "",
    }
    program = link("a/main.frugal", texts(files), ["a", "b", "c"])
    assert {name: each.document.file for name, each in program.includes.items()} == {
        "x": "a/x.frugal",
        "y": "b/sub/y.frugal",
        "z": "c/z.frugal",
    }


@pytest.mark.parametrize(
    ("include", "mistake"),
    [
        ("gone.frugal", "'gone.frugal' is not there; looked for idl/gone.frugal, other/gone.frugal"),
        ("../gone.frugal", "'../gone.frugal' leads out of the folders that are given (idl, other)"),
        ("x/../../../gone.frugal", "'x/../../../gone.frugal' leads out of the folders that are given (idl, other)"),
        (
            "/etc/passwd.frugal",
            "'/etc/passwd.frugal' cannot be included: the path is not one with / that is relative to this file or to "
            "a root",
        ),
        (
            "..\\\\x.frugal",
            "'..\\\\x.frugal' cannot be included: the path is not one with / that is relative to this file or to a "
            "root",
        ),
        (
            "a\\x00.frugal",
            "'a\\x00.frugal' cannot be included: the path is not one with / that is relative to this file or to a root",
        ),
        (
            "a" * PATH_CHARS_MAX + ".frugal",
            f"'{'a' * PATH_CHARS_MAX}.frugal' cannot be included: the path has 1,031 characters; 1,024 are the most",
        ),
    ],
)
def test_an_include_that_cannot_be(include: str, mistake: str) -> None:
    with pytest.raises(IdlError) as caught:
        link("idl/main.frugal", texts({"idl/main.frugal": f'\n include "{include}"'}), ["idl", "other"])
    assert str(caught.value) == f"idl/main.frugal:2:10: {mistake}"


def test_without_roots_includes_stay_below_the_folder_of_the_file() -> None:
    files = {"idl/main.frugal": 'include "../b.frugal"', "b.frugal": ""}
    with pytest.raises(IdlError, match=r"leads out of the folders that are given \(idl\)"):
        link("idl/main.frugal", texts(files))
    assert link("idl/main.frugal", texts(files), ["."]).includes["b"].document.file == "b.frugal"


def test_why_a_file_cannot_be_read_is_told() -> None:
    def read(path: str) -> str:
        if path == "main.frugal":
            return 'include "a.frugal" include "b.frugal"'
        if path == "a.frugal":
            raise PermissionError(13, "Permission denied", path)
        return b"ab\xff".decode()

    with pytest.raises(IdlError) as caught:
        link("main.frugal", read)
    assert [str(each) for each in caught.value.mistakes] == [
        "main.frugal:1:9: a.frugal cannot be read: Permission denied",
        "main.frugal:1:28: b.frugal cannot be read: its byte 2 is no UTF-8",
    ]
    with pytest.raises(IdlError) as caught:
        link("gone.frugal", texts({}))
    assert str(caught.value) == "gone.frugal:1:1: the file cannot be read: No such file or directory"


def test_files_that_include_each_other_in_a_circle() -> None:
    assert mistakes(
        'include "a.frugal"', a='\ninclude "b.frugal"', b='include "c.frugal" include "a.frugal"', c=""
    ) == ["b.frugal:1:28: files include each other in a circle: a.frugal includes b.frugal includes a.frugal"]
    assert mistakes('include "main.frugal"') == [
        "main.frugal:1:9: files include each other in a circle: main.frugal includes main.frugal"
    ]


def test_mistakes_of_all_files_are_told_together() -> None:
    assert mistakes('include "a.frugal" include "b.frugal"\nx', a="y", b="z") == [
        'main.frugal:2:1: a declaration, such as "struct" or "service", is expected, not "x"',
    ]
    assert [each.partition(": ")[0] for each in mistakes('include "a.frugal" include "b.frugal"', a="y", b="\nz")] == [
        "a.frugal:1:1",
        "b.frugal:2:1",
    ]


def test_limits_of_files() -> None:
    def chain(length: int) -> dict[str, str]:
        files = {f"f{number}": f'include "f{number + 1}.frugal"' for number in range(length - 1)}
        return {**files, f"f{length - 1}": ""}

    linked('include "f0.frugal"', **chain(INCLUDE_DEPTH_MAX))
    assert mistakes('include "f0.frugal"', **chain(INCLUDE_DEPTH_MAX + 1)) == [
        f"f{INCLUDE_DEPTH_MAX - 1}.frugal:1:9: this is the end of a chain of more than {INCLUDE_DEPTH_MAX} includes, "
        "the most"
    ]
    many = {f"f{number}": "" for number in range(FILES_MAX)}
    lines = [f'include "{name}.frugal"' for name in many]
    linked(*lines[1:], **many)
    assert mistakes(*lines, **many) == [
        f"main.frugal:{FILES_MAX}:9: the program has more than {FILES_MAX} files, the most of one"
    ]


def test_tokens_of_all_files_have_a_limit() -> None:
    files = {f"f{number}": "const list<i32> C = [" + "1 " * 240_000 + "]" for number in range(3)}
    found = mistakes(*(f'include "{name}.frugal"' for name in files), **files)
    assert len(found) == 1
    assert found[0].startswith("f2.frugal:1:")
    assert found[0].endswith("the file has too many tokens: one has 250,000 at most, all files together 500,000")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("typedef Gone T", '1:9: there is no type "Gone" in this file; of another file it is named "file.Gone"'),
        ("struct S { 1: list<base.Gone> a }", '1:20: there is no type "Gone" in base.frugal'),
        ("struct S { 1: other.X a }", '1:15: there is no type "other.X": this file includes no "other"'),
        ("struct S { 1: base.Base.X a }", '1:15: there is no type "base.Base.X": this file includes no "base.Base"'),
        ("struct S { 1: base.LIMIT a }", '1:15: "base.LIMIT" is a constant, and a type is expected'),
        ("service S { T a() } service T {}", '1:13: "T" is a service, and a type is expected'),
        ("scope A { a: B } scope B {}", '1:14: "B" is a scope, and a type is expected'),
        (
            "service S { void a(1: X x) }",
            '1:23: there is no type "X" in this file; of another file it is named "file.X"',
        ),
        ("const X C = 1", '1:7: there is no type "X" in this file; of another file it is named "file.X"'),
        ("typedef A A", '1:11: the type means itself: "A" is "A"'),
        ("typedef list<B> A\ntypedef map<i32, A> B", '1:17: the type means itself: "A" is "B" is "A"'),
        ("service S extends T {}", '1:19: there is no service "T" in this file; of another file it is named "file.T"'),
        ("service S extends base.Gone {}", '1:19: there is no service "Gone" in base.frugal'),
        ("enum E {} service S extends E {}", '1:29: "E" is an enum, and a service is expected'),
        ("service S extends S {}", '1:9: the service extends itself: "S" extends "S"'),
        (
            "service A extends B {} service B extends C {} service C extends A {}",
            '1:9: the service extends itself: "A" extends "B" extends "C" extends "A"',
        ),
        ("service S extends base.Base { i32 Ping() }", '1:35: "S" inherits "ping" from "Base" already'),
        ("service S { void a() throws (1: X x) } struct X {}", '1:30: "a" throws "x", whose type is no exception'),
        ("service S { void a() throws (1: i32 x) }", '1:30: "a" throws "x", whose type is no exception'),
        (
            "struct A { 1: required A a }",
            '1:12: no value could end: "A" needs "A"; make one of these fields optional',
        ),
        (
            "struct A { 1: required BB b } typedef B BB exception B { 2: required A a }",
            '1:12: no value could end: "A" needs "B" needs "A"; make one of these fields optional',
        ),
    ],
)
def test_one_mistake(text: str, mistake: str) -> None:
    base = "const i32 LIMIT = 1 struct Base_ {} service Base { void ping() }"
    assert mistakes(f'{text}\ninclude "base.frugal"', base=base) == [f"main.frugal:{mistake}"]


@pytest.mark.parametrize(
    "text",
    [
        "struct A { 1: optional A a, 2: list<A> b, 3: required list<A> c, 4: A d }",
        "union A { 1: required A a, 2: i32 b }",  # a field of a union is optional
        "struct A { 1: required B b } struct B { 1: optional A a }",
        "service S { void a() throws (1: E e) } exception X {} typedef X E",
        "service A extends B { void a() } service B extends C { void b() } service C { void c() }",
        "scope A { a: i32, b: list<S> } struct S {} scope S { a: S }",  # a scope may have a type's name
        "struct A { 1: map<set<list<A>>, i32> a }",  # as Thrift allows any key
        "typedef A B typedef C A struct C {}",  # before they are declared
    ],
)
def test_what_is_allowed(text: str) -> None:
    linked(text)


def test_names_are_looked_up_in_the_file_that_writes_them() -> None:
    program = linked(
        'include "base.frugal"',
        "typedef base.Id Id",
        "enum Color { RED }",
        "service S extends base.S {}",
        base="typedef i64 Id enum Color { BLUE = 3 } service S {}",
    )
    assert program.resolve(parse("typedef Id X", "").definitions[0].type)[1] == Scalar(ScalarKind.I64)  # type: ignore[union-attr]
    own, other = program.find_value("Color.RED"), program.find_value("base.Color.BLUE")
    assert own is not None
    assert other is not None
    assert (own.program is program, own.value.number) == (True, 0)
    assert (other.program.document.file, other.enum.name, other.value.number) == ("base.frugal", "Color", 3)
    assert [program.find_value(name) for name in ("Color.BLUE", "RED", "base.RED", "Id.RED", "Color", "")] == [None] * 6
    service = program.find("base.S")
    assert service is not None
    assert isinstance(service.definition, Service)
    assert program.find("base.base.S") is None


def test_a_name_means_the_service_where_a_scope_has_it_too() -> None:
    for text in ("scope S {} service S {}", "service S {} scope S {}"):
        found = linked(text).find("S")
        assert found is not None
        assert isinstance(found.definition, Service)


def test_an_included_file_may_have_dots_in_its_name() -> None:
    files = {"main.thrift": 'include "v1.base.thrift" typedef v1.base.E E', "v1.base.thrift": "enum E { A }"}
    program = link("main.thrift", texts(files))
    found = program.find("v1.base.E")
    assert found is not None
    assert isinstance(found.definition, Enum)
    assert program.find_value("v1.base.E.A") is not None


def test_types_have_limits_with_their_typedefs_written_out() -> None:
    def chain(length: int) -> list[str]:
        return [*(f"typedef list<T{number + 1}> T{number}" for number in range(length)), f"typedef i32 T{length}"]

    linked(*chain(NESTING_MAX // 2 - 1))  # each typedef and each list counts
    found = mistakes(*chain(NESTING_MAX // 2))
    assert found == [
        f'main.frugal:1:18: "T0" is nested more than {NESTING_MAX} deep: the containers and typedefs in it count'
    ]
    assert len(mistakes(*chain(5_000))) > 1
    half = chain(NESTING_MAX // 2 - 1)
    assert mistakes(*half, "struct S { 1: list<list<T0>> a }") == [
        f"main.frugal:{len(half) + 1}:25: the type is nested more than {NESTING_MAX} deep: the containers and typedefs "
        "in it count"
    ]
    tower = ["typedef i32 T0", *(f"typedef map<T{number}, T{number}> T{number + 1}" for number in range(20))]
    assert mistakes(*tower)[0] == (
        f'main.frugal:9:21: "T8" has more than {TYPE_PARTS_MAX:,} parts when the typedefs in it are written out'
    )


def test_services_extend_each_other_to_a_limit() -> None:
    def chain(length: int) -> list[str]:
        return [
            *(f"service S{number} extends S{number + 1} {{}}" for number in range(length)),
            f"service S{length} {{}}",
        ]

    linked(*chain(EXTENDS_MAX))
    assert mistakes(*chain(EXTENDS_MAX + 1)) == [
        f'main.frugal:1:9: "S0" extends a chain of more than {EXTENDS_MAX} services, the most'
    ]


def test_a_long_cycle_is_shortened() -> None:
    (mistake,) = mistakes(*(f"typedef T{(number + 1) % 5_000} T{number}" for number in range(5_000)))
    assert mistake.endswith('"T8" is "T9" is 4,990 others is "T0"')


def test_several_files_are_linked_together() -> None:
    reader = CountingReader(
        {
            "a.frugal": 'include "base.frugal" struct A { 1: base.B b }',
            "base.frugal": "struct B {}",
            "c.frugal": 'include "base.frugal" include "gone.frugal"',
            "d.frugal": "struct D { 1: i32 x 1: i32 y }",
        }
    )
    base, a = link_all(["base.frugal", "a.frugal"], reader, [""])
    assert reader.read == ["base.frugal", "a.frugal"]
    assert a.includes["base"] is base
    assert closure([a, base]) == closure([base, a]) == [base, a]
    with pytest.raises(IdlError) as caught:
        link_all(["a.frugal", "c.frugal", "d.frugal"], reader, [""])
    assert [str(each.position) for each in caught.value.mistakes] == ["c.frugal:1:31", "d.frugal:1:21"]


def test_contradictions_of_streams_may_be_taken_instead() -> None:
    text = texts({"a.frugal": 'struct S { 1: i32 a }\nscope E { Made: S (stream = "s", key = "b") }'})
    taken = Mistakes()
    assert link("a.frugal", text, contradictions=taken).find("E") is not None
    assert [str(each.position) for each in taken] == ["a.frugal:2:11"]
    with pytest.raises(IdlError):
        link("a.frugal", text)


def test_a_document_alone_includes_nothing() -> None:
    assert link_document(parse("struct S {}", "a.frugal")).find("S") is not None
    with pytest.raises(IdlError, match=r'^a\.frugal:1:9: "b\.frugal" cannot be included here$'):
        link_document(parse('include "b.frugal"', "a.frugal"))
    with pytest.raises(IdlError, match='there is no type "X"'):
        link_document(parse("typedef X Y", "a.frugal"))
