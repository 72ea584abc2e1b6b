"""Parser: one Frugal or Thrift file becomes a `Document`, or an IdlError with all its mistakes.

Rules: after a mistake in a member (a field, method, value or operation) it goes on at the next separator, line or end
of the body; after one in a declaration at the next line that begins one. Nesting, tokens, bytes and mistakes have
limits, so that no text costs more than a second or two, nor recursion. Names are looked up by the linker, not here.

Decisions, where Thrift and Frugal differ or only warn:

| text                                  | here                                                                       |
|---------------------------------------|----------------------------------------------------------------------------|
| a field without id, or id below 1     | a mistake: Thrift numbers it by its place, so a new field would change it  |
| equal numbers in an enum              | allowed, as in both                                                        |
| a value of an enum without number     | one more than the value before it (Thrift's rule). In a `.frugal` file a   |
|                                       | mistake if Frugal's own compiler gives it another number                   |
| a negative number in an enum          | allowed in `.thrift`; in `.frugal` a mistake: Frugal's compiler changes it |
| `required` in a union or `throws`     | optional, as in both                                                       |
| `/** … */` and `/**@ … */`            | both document what follows                                                 |
| `Op: i64 (a)`                         | the annotation is the operation's; `i64 (a) ()` gives it to the type       |
| `&`, `cpp_type`, `cpp_include`, xsd_… | read and left out: they are for C++ and XML                                |
| a keyword as a name                   | a member may have one, except methods and values of enums in `.thrift`     |
| a scope named as another definition   | allowed: scopes have names of their own                                    |
| `senum`, `slist`, `cpp_namespace`, …  | a mistake that says what took their place                                  |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Never

from penstock.idl.lexer import FILE_BYTES_MAX, TOKENS_MAX, Kind, Lexer, Token
from penstock.idl.mistakes import MISTAKES_MAX, Mistake, Mistakes
from penstock.idl.model import (
    Annotation,
    Annotations,
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Definition,
    Document,
    Enum,
    EnumValue,
    Field,
    Include,
    ListOf,
    Literal,
    MapOf,
    Method,
    Namespace,
    Operation,
    Position,
    Reference,
    Requiredness,
    Scalar,
    ScalarKind,
    Scope,
    Service,
    SetOf,
    Struct,
    StructKind,
    Type,
    Typedef,
)

NESTING_MAX = 64
"""Deepest nesting of types and of constants: `list<list<i32>>` is 2 deep."""
NAME_CHARS_MAX = 255
"""Most characters of a name."""
PREFIX_CHARS_MAX = 1_024
"""Most characters of a scope's prefix."""
FIELD_ID_MAX = 32_767
"""The largest id of a field: 16 bits on the wire."""
SUFFIXES = (".frugal", ".thrift")
"""Suffixes of IDL files."""

_I32 = range(-(2**31), 2**31)
_SCALARS: Final = {
    **{kind.value: kind for kind in ScalarKind if kind not in (ScalarKind.U32, ScalarKind.U64, ScalarKind.FLOAT)},
    "byte": ScalarKind.I8,
}
_CONTAINERS = ("list", "set", "map")
_DECLARATIONS: Final = frozenset({
    "namespace", "include", "cpp_include", "const", "typedef", "enum", "struct", "union", "exception", "service",
    "scope",
})  # fmt: skip
_KEYWORDS: Final = frozenset({
    *_DECLARATIONS, *_SCALARS, *_CONTAINERS, "void", "oneway", "async", "extends", "throws", "required", "optional",
    "true", "false", "cpp_type", "xsd_all", "xsd_optional", "xsd_nillable", "xsd_attrs",
}) - {"scope"}  # fmt: skip
_OLD_NAMESPACES: Final = {
    "cpp_namespace": "cpp", "php_namespace": "php", "py_module": "py", "perl_package": "perl", "ruby_namespace": "rb",
    "java_package": "java", "csharp_namespace": "csharp", "delphi_namespace": "delphi", "cocoa_prefix": "cocoa",
    "smalltalk_category": "smalltalk.category", "smalltalk_prefix": "smalltalk.prefix", "xsd_namespace": "xsd",
}  # fmt: skip
_PROTOBUF = re.compile(r"(?:\s|//[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+(?:syntax|edition)\s*=")
_NO_PROTOBUF: Final = (
    "this is Protobuf's language, of which only descriptor sets are read: make one with `protoc --include_imports "
    "--descriptor_set_out=contract.binpb FILE` for `penstock idl check` and `penstock schema register`; "
    "`penstock idl compile` and `docs` take .frugal and .thrift"
)
_VARIABLE = re.compile(r"\{[A-Za-z][A-Za-z0-9_]*\}")
_WORD = re.compile(r"[^\s{}*>]+")


def parse(text: str, file: str) -> Document:
    """Return what the text of an IDL file declares. `file`: its name, as errors show it; IdlError: all its mistakes."""
    mistakes = Mistakes()
    document, _ = parse_into(mistakes, text, file)
    mistakes.raise_if_any()
    assert document is not None
    return document


def parse_into(mistakes: Mistakes, text: str, file: str, tokens_max: int = TOKENS_MAX) -> tuple[Document | None, int]:
    """Return what a text declares, or None after its mistakes were added to `mistakes`; and how many tokens it has."""
    begin = Position(file, 1, 1)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        mistakes.add(begin, "the file is no text of Unicode")
        return None, 0
    if size > FILE_BYTES_MAX:
        mistakes.add(begin, f"the file has {size:,} bytes; {FILE_BYTES_MAX:,} are the most of one")
        return None, 0
    if file.endswith(".proto") or _PROTOBUF.match(text):
        mistakes.add(begin, _NO_PROTOBUF)
        return None, 0
    lexer = Lexer(text, file, tokens_max)
    parser = _Parser(lexer, file)
    document = parser.document()
    mistakes.extend(parser.mistakes)
    return None if parser.mistakes else document, tokens_max - lexer.tokens_left


class _Refused(Exception):  # noqa: N818  # a mistake was noted; the caller goes on behind it
    pass


class _Stopped(Exception):  # noqa: N818  # nothing is read any more
    pass


class _Parser:
    """Recursive descent with one token ahead; two where a body may have lost its end."""

    def __init__(self, lexer: Lexer, file: str) -> None:
        self.mistakes: list[Mistake] = []
        self._file = file
        self._is_thrift = file.endswith(".thrift")
        self._lexer = lexer
        self._ahead: Token | None = None
        self._last = Token(Kind.SYMBOL, "", 0, 0)
        self._token = self._lexer.next()
        self._namespaces: dict[str, Namespace] = {}
        self._includes: dict[str, Include] = {}
        self._definitions: list[Definition] = []
        self._names: dict[str, Definition] = {}
        self._declarations: Final[dict[str, Callable[[str], None]]] = {
            "namespace": self._namespace,
            "include": self._include,
            "cpp_include": self._cpp_include,
            "const": self._const,
            "typedef": self._typedef,
            "enum": self._enum,
            "struct": self._struct,
            "union": self._struct,
            "exception": self._struct,
            "service": self._service,
            "scope": self._scope,
        }

    def document(self) -> Document:
        """Read the whole file."""
        try:
            while self._token.kind is not Kind.END:
                begin = self._token
                try:
                    self._declaration()
                except _Refused:
                    self._skip_declaration(begin)
        except _Stopped:
            pass
        return Document(
            self._file, tuple(self._namespaces.values()), tuple(self._includes.values()), tuple(self._definitions)
        )

    # Tokens.

    def _advance(self) -> Token:
        self._last = self._token
        if self._ahead is not None:
            self._token, self._ahead = self._ahead, None
        else:
            self._token = self._lexer.next()
        return self._last

    def _peek(self) -> Token:
        if self._ahead is None:
            self._ahead = self._lexer.next()
        return self._ahead

    def _is(self, text: str) -> bool:
        """True if the token is this symbol or word, unquoted."""
        return self._token.text == text and self._token.kind in (Kind.SYMBOL, Kind.NAME)

    def _take(self, text: str) -> bool:
        if self._is(text):
            self._advance()
            return True
        return False

    def _expect(self, text: str, where: str) -> Token:
        if not self._is(text):
            self._unexpected(f'"{text}" {where}')
        return self._advance()

    def _separator(self) -> None:
        if self._is(",") or self._is(";"):
            self._advance()

    # Mistakes.

    def _place(self, token: Token) -> Position:
        return self._lexer.position(token.at)

    def _mistake(self, place: Position, text: str) -> None:
        self.mistakes.append(Mistake(place, text))
        if len(self.mistakes) > MISTAKES_MAX:
            raise _Stopped

    def _refuse(self, place: Position, text: str) -> Never:
        self._mistake(place, text)
        raise _Refused

    def _unexpected(self, wanted: str) -> Never:
        token = self._token
        if token.kind is Kind.BAD:
            self._refuse(self._place(token), str(token.value))
        if token.kind is Kind.TOO_MANY:
            self._mistake(self._place(token), str(token.value))
            raise _Stopped
        self._refuse(self._place(token), f"{wanted} is expected, not {token}")

    def _begins_declaration(self, words: frozenset[str] = _DECLARATIONS) -> bool:
        """True if the token seems to begin a declaration: a word for one, first on its line, with a name behind it."""
        token = self._token
        if token.kind is not Kind.NAME or token.text not in words or not token.is_first:
            return False
        return self._peek().kind in (Kind.NAME, Kind.LITERAL) and not self._peek().is_first

    def _skip_declaration(self, begin: Token) -> None:
        """Go on to the next declaration."""
        if self._token is begin:
            self._advance()
        while self._token.kind is not Kind.END:
            token = self._token
            if token.kind is Kind.TOO_MANY:
                self._unexpected("")
            if token.kind is Kind.NAME and token.text in _DECLARATIONS and (token.is_first or self._last.text == "}"):
                return
            self._advance()

    def _skip_member(self, begin: Token, close: str) -> None:
        """Go on to the next member: behind a separator, or to a line or the end of the body."""
        depth = 0
        if self._token is begin and not self._is(close):
            depth += _nesting(self._advance())
        while self._token.kind is not Kind.END:
            if self._token.kind is Kind.TOO_MANY:
                self._unexpected("")
            if depth <= 0 and (self._token.is_first or self._is(close)):
                return
            if self._begins_declaration():
                return
            taken = self._advance()
            depth += _nesting(taken)
            if depth <= 0 and taken.kind is Kind.SYMBOL and taken.text in ",;":
                return

    def _members(
        self, owner: str, close: str, member: Callable[[], None], declarations: frozenset[str] = _DECLARATIONS
    ) -> None:
        """Read members up to `close`; behind a mistake go on at the next one."""
        opened = self._place(self._last)
        while not self._take(close):
            if self._token.kind is Kind.END or self._begins_declaration(declarations):
                text = f'"{close}" is missing: {owner}, whose "{_OPENS[close]}" is in line {opened.line}, is not closed'
                self._mistake(self._place(self._token), text)
                return
            begin = self._token
            try:
                member()
            except _Refused:
                self._skip_member(begin, close)

    def _open(self, name: str) -> None:
        """Read the `{` of a body."""
        if self._is("("):
            text = f'the annotations of "{name}" stand behind the "}}" that closes it'
            self._refuse(self._place(self._token), text)
        self._expect("{", f'behind "{name}"')

    # Names, annotations, types.

    def _name(self, what: str, *, may_be_keyword: bool = False) -> str:
        """Read the name of what is declared."""
        token = self._token
        if token.kind is not Kind.NAME:
            self._unexpected(f"the name of {what}")
        if not may_be_keyword and token.text in _KEYWORDS:
            self._refuse(self._place(token), f"{token} is a word of the language; choose another name for {what}")
        if "." in token.text:
            self._refuse(self._place(token), f"the name {token} has a dot; {what} is named by one word")
        if len(token.text) > NAME_CHARS_MAX:
            text = f"the name {token} has {len(token.text):,} characters; {NAME_CHARS_MAX} are the most"
            self._refuse(self._place(token), text)
        self._advance()
        return token.text

    def _annotations(self) -> Annotations:
        """Read `(name = "value", name)`, if it is there."""
        if not self._take("("):
            return ()
        found: list[Annotation] = []

        def one() -> None:
            token = self._token
            if token.kind is not Kind.NAME:
                self._unexpected("the name of an annotation")
            self._advance()
            value = self._literal("the value of the annotation, in quotes,") if self._take("=") else ""
            self._separator()
            found.append(Annotation(token.text, value, self._place(token)))

        self._members("the annotations", ")", one)
        return tuple(found)

    def _literal(self, what: str) -> str:
        if self._token.kind is not Kind.LITERAL:
            self._unexpected(what)
        return str(self._advance().value)

    def _type(self, depth: int = 1) -> Type:
        """Read a type with its annotations."""
        return _annotated(self._bare_type(depth), self._annotations())

    def _bare_type(self, depth: int = 1) -> Type:
        """Read a type up to its annotations."""
        self._cpp_type()
        token = self._token
        if token.kind is not Kind.NAME:
            self._unexpected("a type")
        place = self._place(token)
        if depth > NESTING_MAX:
            self._refuse(place, f"types are nested more than {NESTING_MAX} deep")
        if (kind := _SCALARS.get(token.text)) is not None:
            self._advance()
            return Scalar(kind)
        if token.text in _CONTAINERS:
            return self._container(depth)
        if token.text == "slist":
            self._refuse(place, '"slist" is no type any more; write "string"')
        if token.text == "void":
            self._refuse(place, '"void" is no type of a value; only a method returns it')
        if token.text in _KEYWORDS:
            self._refuse(place, f"a type is expected, not {token}")
        if len(token.text) > 2 * NAME_CHARS_MAX:
            self._refuse(place, f"the name {token} has {len(token.text):,} characters")
        self._advance()
        return Reference(token.text, place)

    def _container(self, depth: int) -> Type:
        word = self._advance().text
        self._cpp_type()
        self._expect("<", f'behind "{word}"')
        first = self._type(depth + 1)
        if word == "map":
            self._expect(",", "between the types of a map's keys and values")
            made: Type = MapOf(first, self._type(depth + 1))
        else:
            made = ListOf(first) if word == "list" else SetOf(first)
        self._expect(">", f"at the end of the {word}'s type")
        self._cpp_type()
        return made

    def _cpp_type(self) -> None:
        if self._take("cpp_type"):
            self._literal("the C++ type, in quotes,")

    # Constants.

    def _value(self, depth: int = 1) -> ConstantValue:
        """Read a constant."""
        token = self._token
        place = self._place(token)
        if depth > NESTING_MAX:
            self._refuse(place, f"constants are nested more than {NESTING_MAX} deep")
        if token.kind in (Kind.INT, Kind.DOUBLE, Kind.LITERAL):
            return Literal(self._advance().value, place)
        if token.kind is Kind.NAME:
            self._advance()
            is_truth = token.text in ("true", "false")
            return Literal(token.text == "true", place) if is_truth else ConstantName(token.text, place)
        if self._take("["):
            return self._list(place, depth)
        self._expect("{", "or another constant")
        return self._map(place, depth)

    def _list(self, place: Position, depth: int) -> ConstantList:
        items: list[ConstantValue] = []

        def one() -> None:
            items.append(self._value(depth + 1))
            self._separator()

        self._members("the list", "]", one)
        return ConstantList(tuple(items), place)

    def _map(self, place: Position, depth: int) -> ConstantMap:
        entries: list[tuple[ConstantValue, ConstantValue]] = []

        def one() -> None:
            key = self._value(depth + 1)
            self._expect(":", "between a key and its value")
            entries.append((key, self._value(depth + 1)))
            self._separator()

        self._members("the map", "}", one)
        return ConstantMap(tuple(entries), place)

    # Declarations.

    def _declaration(self) -> None:
        token = self._token
        read = self._declarations.get(token.text) if token.kind is Kind.NAME else None
        if read is not None:
            self._advance()
            read(token.comment)
            self._separator()
            return
        if token.kind is Kind.NAME and token.text == "senum":
            self._refuse(self._place(token), '"senum" is no longer there; write "enum", or constants of type string')
        if token.kind is Kind.NAME and (language := _OLD_NAMESPACES.get(token.text)):
            self._refuse(self._place(token), f'"{token.text}" is no longer there; write "namespace {language} …"')
        if self._is("}"):
            self._refuse(self._place(token), '"}" closes nothing')
        self._unexpected('a declaration, such as "struct" or "service",')

    def _namespace(self, comment: str) -> None:
        token = self._token
        found = None if token.kind in (Kind.END, Kind.LITERAL) else self._lexer.language(token)
        if found is None:
            self._unexpected('the language of the namespace, such as "py", or "*",')
        language, place = found[0], self._lexer.position(found[1])
        self._ahead = None
        self._advance()
        token = self._token
        if token.kind is not Kind.NAME:
            self._unexpected(f'the package for "{language}"')
        self._advance()
        annotations = self._annotations()
        if language == "*" and any(each.name == "vendor" for each in annotations):
            self._mistake(place, 'a namespace for "*" cannot have "vendor": a vendored package is that of one language')
        if (other := self._namespaces.get(language)) is not None:
            self._mistake(place, f'line {other.position.line} has a namespace for "{language}" already')
        self._namespaces[language] = Namespace(language, token.text, annotations, place)

    def _include(self, comment: str) -> None:
        place = self._place(self._token)
        path = self._literal("the path of the file, in quotes,")
        annotations = self._annotations()
        name = path.rpartition("/")[2].removesuffix(".frugal").removesuffix(".thrift")
        other = self._includes.get(name)
        if not path.endswith(SUFFIXES) or not name:
            text = f'the included file {path!r} is no IDL file; its name must end with ".frugal" or ".thrift"'
        elif other is not None:
            text = f'"{name}" is included already, in line {other.position.line}; its names would mean two things'
        else:
            self._includes[name] = Include(path, name, annotations, place)
            return
        self._mistake(place, text)

    def _cpp_include(self, comment: str) -> None:
        self._literal("the header, in quotes,")

    def _define(self, definition: Definition, word: str) -> None:
        """Take a definition, unless its name is taken.

        Scopes have names of their own. Names of services and scopes that differ in the case of the first letter only
        are the same, as in Frugal.
        """
        name = definition.name
        is_scope = isinstance(definition, Scope)
        keys = [f"scope {_lower(name)}" if is_scope else name]
        keys += [f"service {_lower(name)}"] if isinstance(definition, Service) else []
        for key in keys:
            if (other := self._names.get(key)) is not None:
                line = other.position.line
                text = f'the {word} "{name}" has the name of what line {line} declares'
                if name != other.name:
                    text = f'"{name}" and "{other.name}" of line {line} are the same but for their first letter'
                self._mistake(definition.position, text)
                return
        self._names.update(dict.fromkeys(keys, definition))
        self._definitions.append(definition)

    def _const(self, comment: str) -> None:
        type_ = self._type()
        place = self._place(self._token)
        name = self._name("the constant")
        self._expect("=", f'behind "{name}"')
        value = self._value()
        self._define(Constant(name, type_, value, comment, self._annotations(), place), "constant")

    def _typedef(self, comment: str) -> None:
        type_ = self._type()
        place = self._place(self._token)
        name = self._name("the type")
        self._define(Typedef(name, type_, comment, self._annotations(), place), "type")

    def _enum(self, comment: str) -> None:
        place = self._place(self._token)
        name = self._name("the enum")
        self._open(name)
        values: dict[str, EnumValue] = {}
        next_number, highest = 0, -1

        def one() -> None:
            nonlocal next_number, highest
            value = self._enum_value(name, next_number, highest + 1)
            next_number, highest = value.number + 1, max(highest, value.number)
            if value.name in values:
                self._mistake(value.position, f'"{name}" has a value "{value.name}" already')
            values[value.name] = value

        self._members(f'the enum "{name}"', "}", one)
        self._define(Enum(name, tuple(values.values()), comment, self._annotations(), place), "enum")

    def _enum_value(self, enum: str, number: int, by_frugal: int) -> EnumValue:
        """Read a value; without a number it has `number`, but `by_frugal` in Frugal's compiler."""
        comment, place = self._token.comment, self._place(self._token)
        name = self._name(f'a value of "{enum}"', may_be_keyword=not self._is_thrift)
        if self._take("="):
            if self._token.kind is not Kind.INT:
                self._unexpected(f'the number of "{name}"')
            number = by_frugal = int(self._advance().value)
        if number not in _I32:
            self._mistake(place, f'the number {number} of "{name}" does not fit 32 bits')
        elif number != by_frugal and not self._is_thrift:
            text = f"Thrift reads it as {number}, Frugal's compiler as {by_frugal}; give it a number"
            self._mistake(place, f'"{name}" has no number: {text}')
        elif number < 0 and not self._is_thrift:
            text = "Frugal's compiler changes a negative one; give one from 0 on"
            self._mistake(place, f'the number of "{name}" is {number}: {text}')
        annotations = self._annotations()
        self._separator()
        return EnumValue(name, number, comment, annotations, place)

    def _struct(self, comment: str) -> None:
        kind = StructKind(self._last.text)
        place = self._place(self._token)
        name = self._name(f"the {kind}")
        self._take("xsd_all")
        self._open(name)
        fields = self._fields(f'the {kind} "{name}"', "}", is_optional=kind is StructKind.UNION)
        if kind is StructKind.UNION:
            for extra in [each for each in fields if each.default is not None][1:]:
                text = f'"{extra.name}" is one more field with a default; a union has one value'
                self._mistake(extra.position, text)
        self._define(Struct(name, kind, fields, comment, self._annotations(), place), kind)

    def _fields(self, owner: str, close: str, *, is_optional: bool) -> tuple[Field, ...]:
        ids: dict[int, Field] = {}
        names: dict[str, Field] = {}

        def one() -> None:
            field = self._field(is_optional=is_optional)
            if (other := ids.get(field.id)) is not None:
                self._mistake(field.position, f'the id {field.id} of "{field.name}" is that of "{other.name}" already')
            elif field.name in names:
                self._mistake(field.position, f'{owner} has "{field.name}" already, with the id {names[field.name].id}')
            else:
                ids[field.id] = names[field.name] = field

        self._members(owner, close, one)
        return tuple(ids.values())

    def _field(self, *, is_optional: bool) -> Field:
        comment, place = self._token.comment, self._place(self._token)
        if self._token.kind is not Kind.INT:
            if self._token.kind is Kind.NAME:
                text = f'{self._token} begins a field without an id; write one in front of it, such as "1: string name"'
                self._refuse(place, text)
            self._unexpected('a field, such as "1: string name",')
        id_ = int(self._advance().value)
        self._expect(":", "between a field's id and its type")
        if not 1 <= id_ <= FIELD_ID_MAX:
            self._mistake(place, f"the id {id_} is none of a field; give one from 1 to {FIELD_ID_MAX:,}")
        required = Requiredness.DEFAULT
        if self._is("required") or self._is("optional"):
            required = Requiredness(self._advance().text)
        type_ = self._type()
        self._take("&")
        name = self._name("the field", may_be_keyword=True)
        default = self._value() if self._take("=") else None
        self._take("xsd_optional")
        self._take("xsd_nillable")
        if self._take("xsd_attrs"):
            self._expect("{", 'behind "xsd_attrs"')
            self._fields("the attributes", "}", is_optional=False)
        annotations = self._annotations()
        self._separator()
        return Field(
            id_, name, type_, Requiredness.OPTIONAL if is_optional else required, default, comment, annotations, place
        )

    def _service(self, comment: str) -> None:
        place = self._place(self._token)
        name = self._name("the service")
        extends = None
        if self._take("extends"):
            token = self._token
            if token.kind is not Kind.NAME:
                self._unexpected(f'the service that "{name}" extends')
            self._advance()
            extends = Reference(token.text, self._place(token))
        self._open(name)
        methods: dict[str, Method] = {}

        def one() -> None:
            method = self._method()
            if (other := methods.get(_lower(method.name))) is not None:
                self._mistake(method.position, _same_member(name, "the method", method.name, other.name))
            else:
                methods[_lower(method.name)] = method

        self._members(f'the service "{name}"', "}", one, _DECLARATIONS - {"scope"})
        made = Service(name, extends, tuple(methods.values()), comment, self._annotations(), place)
        self._define(made, "service")

    def _method(self) -> Method:
        comment = self._token.comment
        is_oneway = self._take("oneway") or self._take("async")
        returns = None if self._take("void") else self._type()
        place = self._place(self._token)
        name = self._name("the method", may_be_keyword=not self._is_thrift)
        self._expect("(", f'behind "{name}"')
        arguments = self._fields(f'the method "{name}"', ")", is_optional=False)
        exceptions: tuple[Field, ...] = ()
        if self._take("throws"):
            self._expect("(", 'behind "throws"')
            exceptions = self._fields(f'the exceptions of "{name}"', ")", is_optional=True)
        if is_oneway and returns is not None:
            self._mistake(place, f'"{name}" is oneway, so it returns nothing; write "oneway void {name}"')
        if is_oneway and exceptions:
            text = f'"{name}" is oneway, so no answer brings its exceptions; leave out "throws" or "oneway"'
            self._mistake(place, text)
        annotations = self._annotations()
        if annotations and self._is("throws"):
            text = f'"throws" of "{name}" stands in front of its annotations'
            self._refuse(self._place(self._token), text)
        self._separator()
        return Method(name, returns, arguments, exceptions, is_oneway, comment, annotations, place)

    def _scope(self, comment: str) -> None:
        place = self._place(self._token)
        name = self._name("the scope")
        prefix, variables = self._prefix() if self._take("prefix") else ("", ())
        self._open(name)
        operations: dict[str, Operation] = {}

        def one() -> None:
            operation = self._operation()
            if (other := operations.get(_lower(operation.name))) is not None:
                self._mistake(operation.position, _same_member(name, "the operation", operation.name, other.name))
            else:
                operations[_lower(operation.name)] = operation

        self._members(f'the scope "{name}"', "}", one)
        made = Scope(name, prefix, variables, tuple(operations.values()), comment, self._annotations(), place)
        self._define(made, "scope")

    def _prefix(self) -> tuple[str, tuple[str, ...]]:
        """Read a prefix and return it with the names of its variables."""
        found = self._lexer.rest_of_prefix(self._token)
        if found is None:
            self._unexpected('a prefix, such as "orders.{region}",')
        prefix, place = found[0], self._lexer.position(found[1])
        self._ahead = None
        self._advance()
        if len(prefix) > PREFIX_CHARS_MAX:
            self._refuse(place, f"the prefix has {len(prefix):,} characters; {PREFIX_CHARS_MAX:,} are the most")
        variables: list[str] = []
        for word in prefix.split("."):
            if not word.startswith("{"):
                if not _WORD.fullmatch(word) or not word.isprintable():
                    self._mistake(place, f"the token {word!r} of the prefix cannot be part of a subject")
            elif not _VARIABLE.fullmatch(word):
                text = f"the variable {word!r} of the prefix needs a name of letters, digits and _, a letter first"
                self._mistake(place, text)
            elif word[1:-1] in variables:
                self._mistake(place, f"the variable {word!r} is in the prefix twice")
            else:
                variables.append(word[1:-1])
        return prefix, tuple(variables)

    def _operation(self) -> Operation:
        comment, place = self._token.comment, self._place(self._token)
        name = self._name("the operation", may_be_keyword=True)
        self._expect(":", f'behind "{name}", then the type of its message,')
        type_ = self._bare_type()
        annotations = self._annotations()
        if self._is("("):
            type_, annotations = _annotated(type_, annotations), self._annotations()
        self._separator()
        return Operation(name, type_, comment, annotations, place)


_OPENS: Final = {"}": "{", ")": "(", "]": "["}


def _nesting(token: Token) -> int:
    if token.kind is not Kind.SYMBOL:
        return 0
    return 1 if token.text in "({[" else -1 if token.text in ")}]" else 0


def _lower(name: str) -> str:
    """Return a name as it is on the wire: its first letter in lower case."""
    return name[:1].lower() + name[1:]


def _annotated(type_: Type, annotations: Annotations) -> Type:
    return replace(type_, annotations=annotations) if annotations else type_


def _same_member(owner: str, what: str, name: str, other: str) -> str:
    if name == other:
        return f'"{owner}" has {what} "{name}" already'
    return f'"{owner}" has {what} "{other}" already, and "{name}" is the same on the wire'
