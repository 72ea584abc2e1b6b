"""Pages for people about a contract: one self-contained HTML page, or Markdown.

Rules: pure. A page shows the file and all that it includes: services, scopes with their subjects, types with links to
one another, constants. Text of a contract is never markup: names, comments and constants are escaped, characters that
control a terminal or the direction of text are replaced. An HTML page has no script, loads nothing, and its policy
(`Content-Security-Policy`) forbids both.

`_Page` walks the program once and gives blocks to a `_Writer`; there is one for each form.

| block       | HTML                     | Markdown                 |
|-------------|--------------------------|--------------------------|
| heading     | `<h2 id="…">`            | `<a id="…"></a>`, `## …` |
| text        | `<p>`                    | a line of its own        |
| table       | `<table>`                | a table of GitHub's form |
| code        | `<code>`                 | between back quotes      |
"""

from __future__ import annotations

import html
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from penstock.idl.model import (
    Annotation,
    Annotations,
    Constant,
    ConstantValue,
    Definition,
    Enum,
    Field,
    Found,
    ListOf,
    MapOf,
    Method,
    Operation,
    Program,
    Reference,
    Scalar,
    Scope,
    Service,
    SetOf,
    Streaming,
    Struct,
    StructKind,
    Type,
    Typedef,
)
from penstock.idl.printer import quoted, value_text

SUBJECT_ROOT = "frugal"
"""The first token of the subjects of all scopes."""
CONSTANT_CHARS_MAX = 500
"""Characters of a constant that a page shows."""


class PageFormat(StrEnum):
    HTML = "html"
    MARKDOWN = "markdown"


def page(program: Program, form: PageFormat = PageFormat.HTML, *, title: str = "") -> str:
    """Return the page of a linked file and its includes. `title`: by default the file's name."""
    writer: _Writer = _Html() if form is PageFormat.HTML else _Markdown()
    return writer.whole(*_Page(program, title, writer).made())


def subject_of(scope: Scope, operation: Operation) -> str:
    """Return the subject of an operation; variables are in braces: "frugal.orders.{region}.Orders.Placed"."""
    return ".".join(filter(None, (SUBJECT_ROOT, scope.prefix, scope.name, operation.name)))


class _Span(NamedTuple):
    """A piece of a line: `link` is the anchor of what it names, `is_code` how it is shown."""

    text: str
    link: str = ""
    is_code: bool = False


_Line = tuple[_Span, ...]


class _Writer(Protocol):
    """Writes blocks in one form."""

    def heading(self, level: int, text: str, anchor: str) -> str: ...

    def text(self, line: _Line) -> str: ...

    def items(self, lines: Sequence[_Line]) -> str: ...

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[_Line]]) -> str: ...

    def whole(self, title: str, blocks: Sequence[str]) -> str: ...


def _plain(text: str) -> _Line:
    return (_Span(text),) if text else ()


def _code(text: str, link: str = "") -> _Line:
    return (_Span(text, link, is_code=True),)


class _Page:
    """One page: the blocks of a program, and the anchors of what it declares."""

    def __init__(self, program: Program, title: str, writer: _Writer) -> None:
        self._program = program
        self._title = title or posixpath.basename(program.document.file)
        self._write = writer
        self._blocks: list[str] = []
        self._prefixes = _prefixes(program)

    def made(self) -> tuple[str, list[str]]:
        """Return the title and all blocks."""
        programs = [self._program, *(each for each in self._prefixes if each is not self._program)]
        self._heading(1, self._title, "page:top")
        self._contents(programs)
        for program in programs:
            if len(programs) > 1:
                self._heading(2, f"File {posixpath.basename(program.document.file)}", f"file:{self._of(program)}")
            self._file(program)
        return self._title, self._blocks

    # Blocks

    def _heading(self, level: int, text: str, anchor: str) -> None:
        self._blocks.append(self._write.heading(level, text, anchor))

    def _text(self, *line: _Span) -> None:
        self._blocks.append(self._write.text(line))

    def _table(self, titles: Sequence[str], rows: Sequence[Sequence[_Line]]) -> None:
        """Add a table without the columns that are empty in all rows."""
        kept = [at for at in range(len(titles)) if any(row[at] for row in rows)]
        if rows:
            shown = [[row[at] for at in kept] for row in rows]
            self._blocks.append(self._write.table([titles[at] for at in kept], shown))

    def _comment(self, comment: str, annotations: Annotations) -> None:
        if (deprecated := _deprecated(annotations)) is not None:
            self._text(*_plain(deprecated))
        for paragraph in re.split(r"\n\s*\n", comment.strip()):
            if words := " ".join(paragraph.split()):
                self._text(_Span(words))
        others = [each for each in annotations if each.name != "deprecated"]
        if others:
            self._text(_Span("Annotations: "), *_annotations_line(others))

    # Anchors: names have neither ":" nor "-", so none is that of another thing

    def _of(self, program: Program) -> str:
        return self._prefixes[program] or "main"

    def _anchor(self, program: Program, definition: Definition) -> str:
        sort = "scope:" if isinstance(definition, Scope) else ""  # a scope may have the name of a service
        prefix = self._prefixes[program]
        return f"{sort}{prefix}.{definition.name}" if prefix else f"{sort}{definition.name}"

    def _link(self, found: Found | None) -> str:
        return "" if found is None else self._anchor(found.program, found.definition)

    # Files

    def _contents(self, programs: Sequence[Program]) -> None:
        lines: list[_Line] = []
        for program in programs:
            for title, group in _groups(program):
                links = [_Span(each.name, self._anchor(program, each)) for each in group]
                name = (
                    f"{title} of {posixpath.basename(program.document.file)}: " if len(programs) > 1 else f"{title}: "
                )
                lines.append((_Span(name), *_joined(links)))
        if lines:
            self._blocks.append(self._write.items(lines))

    def _file(self, program: Program) -> None:
        namespaces = [[_code(each.language), _code(each.name)] for each in program.document.namespaces]
        self._table(("Language", "Namespace"), namespaces)
        for title, group in _groups(program):
            if title in ("Constants", "Typedefs"):
                self._heading(2, title, f"{title.lower()}:{self._of(program)}")
            for each in group:
                self._definition(program, each)

    def _definition(self, program: Program, definition: Definition) -> None:
        noun = str(definition.kind) if isinstance(definition, Struct) else type(definition).__name__.lower()
        level = 3 if isinstance(definition, Constant | Typedef) else 2
        self._heading(level, f"{noun.capitalize()} {definition.name}", self._anchor(program, definition))
        self._comment(definition.comment, definition.annotations)
        match definition:
            case Typedef():
                self._text(_Span("Type: "), *self._type(program, definition.type))
            case Constant():
                value = _Span(_value_text(definition.value), is_code=True)
                self._text(*self._type(program, definition.type), _Span(" = "), value)
            case Enum():
                self._enum(definition)
            case Struct():
                is_union = definition.kind is StructKind.UNION
                if is_union:
                    self._text(_Span("Exactly one field is set."))
                self._fields(program, definition.fields, "Field", are_optional=is_union)
            case Service():
                self._service(program, definition)
            case Scope():
                self._scope(program, definition)

    def _enum(self, enum: Enum) -> None:
        rows = [
            [_code(str(each.number)), _code(each.name), _remark(each.comment, each.annotations)] for each in enum.values
        ]
        self._table(("Number", "Value", "Meaning"), rows)

    def _fields(self, program: Program, fields: Iterable[Field], noun: str, *, are_optional: bool = False) -> None:
        """Add a table of fields; `are_optional`: all are, so none says so."""
        rows = [
            [
                _code(str(each.id)),
                _code(each.name),
                self._type(program, each.type),
                _plain("" if are_optional or each.requiredness == "default" else str(each.requiredness)),
                () if each.default is None else _code(_value_text(each.default)),
                _remark(each.comment, each.annotations),
            ]
            for each in fields
        ]
        self._table(("Id", noun, "Type", "Presence", "Default", "Meaning"), rows)

    def _service(self, program: Program, service: Service) -> None:
        if service.extends is not None:
            base = service.extends.name
            self._text(_Span("Extends "), _Span(base, self._link(program.find(base)), is_code=True))
        for method in service.methods:
            self._heading(3, f"{service.name}.{method.name}", f"{self._anchor(program, service)}-{method.name}")
            self._comment(method.comment, method.annotations)
            self._text(*self._signature(program, method))
            self._fields(program, method.arguments, "Argument")
            self._fields(program, method.exceptions, "Exception", are_optional=True)

    def _signature(self, program: Program, method: Method) -> Iterator[_Span]:
        if method.is_oneway:
            yield _Span("One way: no answer comes.")
        elif method.returns is None:
            yield _Span("Returns nothing; the caller waits until it is done.")
        else:
            yield _Span("Returns ")
            yield from self._type(program, method.returns)
            if method.streaming is not Streaming.NONE:
                yield _Span(f"; streaming: {method.streaming}")

    def _scope(self, program: Program, scope: Scope) -> None:
        rows = []
        for each in scope.operations:
            subject = subject_of(scope, each)
            wildcard = re.sub(r"\{[^}.]*\}", "*", subject)
            rows.append(
                [
                    _code(each.name),
                    _code(subject),
                    _code(wildcard) if wildcard != subject else (),
                    self._type(program, each.type),
                    _remark(each.comment, each.annotations),
                ]
            )
        self._table(("Operation", "Subject", "Wildcard", "Message", "Meaning"), rows)

    # Types

    def _type(self, program: Program, type_: Type) -> _Line:
        match type_:
            case Scalar():
                return _code(str(type_.kind))
            case Reference():
                return _code(type_.name, self._link(program.find(type_.name)))
            case ListOf() | SetOf():
                word = "list" if isinstance(type_, ListOf) else "set"
                return (*_code(f"{word}<"), *self._type(program, type_.element), *_code(">"))
            case MapOf():
                key, value = self._type(program, type_.key), self._type(program, type_.value)
                return (*_code("map<"), *key, *_code(", "), *value, *_code(">"))


def _prefixes(program: Program) -> dict[Program, str]:
    """Return the beginning of the anchors of each file: "" for the page's own one."""
    found: dict[Program, str] = {program: ""}
    taken = {""}
    for each in program.closure():
        if each not in found:
            stem = posixpath.splitext(posixpath.basename(each.document.file))[0]
            name = base = re.sub(r"[^A-Za-z0-9_-]", "-", stem) or "file"
            number = 1
            while name in taken:
                number += 1
                name = f"{base}-{number}"
            taken.add(name)
            found[each] = name
    return found


_GROUPS: tuple[tuple[str, Callable[[Definition], bool]], ...] = (
    ("Services", lambda each: isinstance(each, Service)),
    ("Scopes", lambda each: isinstance(each, Scope)),
    ("Structs", lambda each: isinstance(each, Struct) and each.kind == "struct"),
    ("Unions", lambda each: isinstance(each, Struct) and each.kind == "union"),
    ("Exceptions", lambda each: isinstance(each, Struct) and each.kind == "exception"),
    ("Enums", lambda each: isinstance(each, Enum)),
    ("Typedefs", lambda each: isinstance(each, Typedef)),
    ("Constants", lambda each: isinstance(each, Constant)),
)


def _groups(program: Program) -> Iterator[tuple[str, list[Definition]]]:
    for title, belongs in _GROUPS:
        if group := [each for each in program.document.definitions if belongs(each)]:
            yield title, group


def _joined(spans: Sequence[_Span]) -> _Line:
    return tuple(part for number, span in enumerate(spans) for part in ((_Span(", "), span) if number else (span,)))


def _merged(line: _Line) -> Iterator[_Span]:
    """Yield the spans of a line; code that follows code is one: their back quotes would not part in Markdown."""
    for (is_code, link), group in itertools.groupby(line, lambda each: (each.is_code, each.link)):
        if link:
            yield from group
        else:
            yield _Span("".join(each.text for each in group), is_code=is_code)


def _deprecated(annotations: Annotations) -> str | None:
    found = next((each for each in annotations if each.name == "deprecated"), None)
    return None if found is None else f"Deprecated: {found.value}" if found.value else "Deprecated."


def _annotations_line(annotations: Sequence[Annotation]) -> _Line:
    texts = (f"{each.name} = {quoted(each.value)}" if each.value else each.name for each in annotations)
    return _joined([_Span(each, is_code=True) for each in texts])


def _remark(comment: str, annotations: Annotations) -> _Line:
    """Return the last cell of a row: whether it is deprecated, its comment, and its other annotations."""
    others = [each for each in annotations if each.name != "deprecated"]
    parts = [_plain(_deprecated(annotations) or ""), _plain(" ".join(comment.split())), _annotations_line(others)]
    kept = [part for part in parts if part]
    return tuple(span for number, part in enumerate(kept) for span in ((_Span(" "), *part) if number else part))


def _value_text(value: ConstantValue) -> str:
    text = value_text(value)
    return text if len(text) <= CONSTANT_CHARS_MAX else text[: CONSTANT_CHARS_MAX - 1] + "…"


_REPLACED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, marks of direction, and halves of characters."""


def _clean(text: str) -> str:
    """Return a line of text without line ends and without what would change how the rest of the page is shown."""
    return _REPLACED.sub("\ufffd", re.sub(r"[\t\n\r]+", " ", text))


_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8885 }
code { font: .9em ui-monospace, monospace }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8888 }
:target { background: #fd06 }
"""


class _Html:
    """Writes HTML. Each text goes through `_escaped`."""

    def heading(self, level: int, text: str, anchor: str) -> str:
        return f'<h{level} id="{self._escaped(anchor)}">{self._escaped(text)}</h{level}>'

    def text(self, line: _Line) -> str:
        return f"<p>{self._line(line)}</p>"

    def items(self, lines: Sequence[_Line]) -> str:
        return "\n".join(("<ul>", *(f"<li>{self._line(each)}</li>" for each in lines), "</ul>"))

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[_Line]]) -> str:
        head = "".join(f"<th>{self._escaped(each)}</th>" for each in titles)
        body = ("".join(f"<td>{self._line(each)}</td>" for each in row) for row in rows)
        return "\n".join(("<table>", f"<tr>{head}</tr>", *(f"<tr>{each}</tr>" for each in body), "</table>"))

    def whole(self, title: str, blocks: Sequence[str]) -> str:
        head = (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{self._escaped(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
        )
        return "\n".join((*head, *blocks, "</body>", "</html>", ""))

    def _line(self, line: _Line) -> str:
        return "".join(map(self._span, _merged(line)))

    def _span(self, span: _Span) -> str:
        text = self._escaped(span.text)
        if span.is_code:
            text = f"<code>{text}</code>"
        return f'<a href="#{self._escaped(span.link)}">{text}</a>' if span.link else text

    def _escaped(self, text: str) -> str:
        return html.escape(_clean(text), quote=True)


class _Markdown:
    """Writes Markdown as GitHub and CommonMark read it, with its tables. Each text goes through `_escaped`."""

    def heading(self, level: int, text: str, anchor: str) -> str:
        return f'<a id="{html.escape(_clean(anchor))}"></a>\n\n{"#" * level} {self._escaped(text)}\n'

    def text(self, line: _Line) -> str:
        return f"{self._line(line)}\n"

    def items(self, lines: Sequence[_Line]) -> str:
        return "\n".join((*(f"- {self._line(each)}" for each in lines), ""))

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[_Line]]) -> str:
        lines = [f"| {' | '.join(map(self._escaped, titles))} |", f"|{'---|' * len(titles)}"]
        lines += (f"| {' | '.join(self._line(each, in_table=True) for each in row)} |" for row in rows)
        return "\n".join((*lines, ""))

    def whole(self, title: str, blocks: Sequence[str]) -> str:
        return "\n".join(blocks)

    def _line(self, line: _Line, *, in_table: bool = False) -> str:
        return "".join(self._span(each, in_table) for each in _merged(line))

    def _span(self, span: _Span, in_table: bool) -> str:
        text = self._quoted(span.text, in_table) if span.is_code else self._escaped(span.text)
        return f"[{text}](#{html.escape(_clean(span.link))})" if span.link else text

    def _quoted(self, text: str, in_table: bool) -> str:
        """Return code between as many back quotes as it needs."""
        text = _clean(text)
        if in_table:
            text = text.replace("|", "\\|")  # the rule of tables, also within code
        longest = max((len(each) for each in re.findall("`+", text)), default=0)
        fence = "`" * (longest + 1)
        pad = " " if longest or text.startswith(" ") else ""
        return f"{fence}{pad}{text}{pad}{fence}"

    def _escaped(self, text: str) -> str:
        """Return text with what is markup escaped; at its beginning also what would make a list or a heading."""
        escaped = re.sub(r"([\\`*_{}\[\]<>&|#~!$()])", r"\\\1", _clean(text))
        return re.sub(r"^(\s*)([-+=]|\d+(?=\.))", self._at_the_beginning, escaped)

    def _at_the_beginning(self, found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}\\" if found[2].isdigit() else f"{found[1]}\\{found[2]}"
