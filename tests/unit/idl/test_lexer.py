"""Tokens of IDL files: their kinds, values, places and comments."""

from __future__ import annotations

import pytest

from penstock.idl.lexer import Kind, Lexer, Token, clean_comment


def tokens(text: str) -> list[Token]:
    lexer, found = Lexer(text, "a.frugal"), []
    while (token := lexer.next()).kind is not Kind.END:
        found.append(token)
    return found


def only(text: str) -> Token:
    (token,) = tokens(text)
    return token


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Order", Kind.NAME, "Order"),
        ("base.Order", Kind.NAME, "base.Order"),
        ("_a1._2", Kind.NAME, "_a1._2"),
        ("e10", Kind.NAME, "e10"),  # no double
        ("0", Kind.INT, 0),
        ("-12", Kind.INT, -12),
        ("+12", Kind.INT, 12),
        ("098", Kind.INT, 98),
        ("0x1F", Kind.INT, 31),
        ("-0x1f", Kind.INT, -31),
        ("9223372036854775807", Kind.INT, 2**63 - 1),
        ("-9223372036854775808", Kind.INT, -(2**63)),
        ("1.5", Kind.DOUBLE, 1.5),
        ("085.2355", Kind.DOUBLE, 85.2355),
        ("-.5", Kind.DOUBLE, -0.5),
        ("2.", Kind.DOUBLE, 2.0),
        ("1e10", Kind.DOUBLE, 1e10),
        ("1.5E-3", Kind.DOUBLE, 0.0015),
        ('"text"', Kind.LITERAL, "text"),
        ("'say \"hi\"'", Kind.LITERAL, 'say "hi"'),
        (r'"a\n\t\r\\\"\'"', Kind.LITERAL, "a\n\t\r\\\"'"),
        (r'"\a\b\f\v\x41\101\u20ac\U0001F600"', Kind.LITERAL, "\a\b\f\vAA€😀"),
        (r'"\xc3\xa9\303\251"', Kind.LITERAL, "éé"),  # bytes of UTF-8, as in Go
        ('"# no // comment /* */"', Kind.LITERAL, "# no // comment /* */"),
        ("{", Kind.SYMBOL, "{"),
    ],
)
def test_one_token(text: str, kind: Kind, value: object) -> None:
    token = only(text)
    assert (token.kind, token.value, token.text) == (kind, value, text)
    assert type(token.value) is type(value)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("9223372036854775808", "the number 9223372036854775808 does not fit 64 bits"),
        ("-0xFFFFFFFFFFFFFFFFF", "the number -0xFFFFFFFFFFFFFFFFF does not fit 64 bits"),
        ("1e999", "the number 1e999 is too large for a double"),
        ("9" * 401, "the number has 401 characters; 400 are the most"),
        ('"open', 'the text has no end on its line; close it by "'),
        ("'open\\", "the text has no end on its line; close it by '"),
        (r'"\q"', r"there is no escape '\\q'; a backslash itself is written twice"),
        (r'"\xff"', r"the bytes of \x and \OOO are no UTF-8; write \uHHHH for a character"),
        (r'"\777"', r"\777 is no byte; the largest is \377"),
        (r'"\ud800"', r"\ud800 is no character of Unicode"),
        (r'"\U00110000"', r"\U00110000 is no character of Unicode"),
        ("/* open", 'the comment has no end; close it by "*/"'),
        ("€", r"'\u20ac' begins no name, number or text"),
        ("\x00\x01", r"'\x00\x01' begins no name, number or text"),
    ],
)
def test_what_is_no_token(text: str, mistake: str) -> None:
    token = only(text)
    assert (token.kind, token.value, token.text) == (Kind.BAD, mistake, text)


def test_behind_what_is_no_token_the_lexer_goes_on() -> None:
    assert [(one.kind, one.text) for one in tokens('€ a "open\nb')] == [
        (Kind.BAD, "€"),
        (Kind.NAME, "a"),
        (Kind.BAD, '"open'),
        (Kind.NAME, "b"),
    ]


def test_places_count_lines_and_characters_from_one() -> None:
    lexer = Lexer("\ufeffa\r\n\t€b\n\n  c", "dir/a.frugal")
    found = []
    while (token := lexer.next()).kind is not Kind.END:
        found.append((token.text, str(lexer.position(token.at)), token.is_first))
    assert found == [
        ("a", "dir/a.frugal:1:2", True),
        ("€", "dir/a.frugal:2:2", False),  # BAD tokens begin no line
        ("b", "dir/a.frugal:2:3", False),
        ("c", "dir/a.frugal:4:3", True),
    ]
    assert str(lexer.position(token.at)) == "dir/a.frugal:4:4"


def test_comments_are_left_out_but_for_those_that_document() -> None:
    text = """
    // one
    # two
    /* three */ a /**/ b /***/ c /****/
    /** of d */ d
    /** lost */ /* no */ /**@ of e */ // no
    # no
    e
    """
    assert [(one.text, one.comment) for one in tokens(text)] == [
        ("a", ""),
        ("b", ""),
        ("c", ""),
        ("d", "of d"),
        ("e", "of e"),
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("@ one line ", "one line"),
        (" one line *", "one line"),
        ("one\r\n two", "one\ntwo"),
        ("\n * first\n *   indented\n *\n * last\n ", "first\n  indented\n\nlast"),
        ("@ title\n * rest\n ", "title\nrest"),
        ("\n  no stars\n    indented\n  ", "no stars\n  indented"),
        ("\n * * a bullet\n * * another\n", "* a bullet\n* another"),
        ("\n*\n*\n", ""),
        (" \n\n ", ""),
        ("@", ""),
        ("@@param", "@param"),
    ],
)
def test_comments_lose_their_frame(raw: str, expected: str) -> None:
    assert clean_comment(raw) == expected


def test_the_limit_of_tokens_ends_the_file() -> None:
    lexer = Lexer("a b c d", "a.frugal", tokens_max=2)
    kinds = [lexer.next().kind for _ in range(5)]
    assert kinds == [Kind.NAME, Kind.NAME, Kind.TOO_MANY, Kind.END, Kind.END]
    assert lexer.tokens_left == 0
