"""The words of a .proto file, one at a time, each with its place."""

import re
from typing import Final

from goqueue.errors import InvalidSchema

TOKENS_MAX: Final = 60_000
"""In one file: some 12,000 fields, and some 100 ms."""

_TOKEN = re.compile(
    r"""
    (?:[ \t\r\n\f\v]++ | //[^\n]*+ | /\*(?s:.*?)\*/)*+
    (?:
        (?P<identifier>[A-Za-z_][A-Za-z0-9_]*+)
      | (?P<float>(?:[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?+ | [0-9]++[eE][+-]?[0-9]++ | \.[0-9]++(?:[eE][+-]?[0-9]++)?+)
            (?![A-Za-z0-9_.]))
      | (?P<integer>(?:0[xX][0-9a-fA-F]++ | 0[0-7]*+ | [1-9][0-9]*+)(?![A-Za-z0-9_.]))
      | (?P<string>"(?:[^"\\\n\0]|\\[^\n])*+" | '(?:[^'\\\n\0]|\\[^\n])*+')
      | (?P<symbol>[;{}=()\[\],.<>:+/-])
      | (?P<end>\Z)
    )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    rb"\\(?:([abfnrtv\\'\"?])|([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SIMPLE = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))


class Tokens:
    """The words of a text: `kind`, `value` and `start` are those of the next one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._count = 0
        self._position = 1 if text.startswith("\ufeff") else 0
        self.kind: str | None = None
        self.value = ""
        self.start = 0
        self.advance()

    def advance(self) -> str:
        """Go on, and return the word that was next."""
        before = self.value
        found = _TOKEN.match(self._text, self._position)
        if not found:
            raise self.invalid("there is something that belongs to no .proto file", self._position)
        kind = found.lastgroup
        assert kind
        self.kind = kind
        self.start, self._position = found.span(kind)
        self.value = found[kind]
        self._count += 1
        if self._count > TOKENS_MAX:
            raise self.invalid(f"the file has more than {TOKENS_MAX} words")
        return before

    def is_next(self, *values: str) -> bool:
        """Whether one of these words or signs is next."""
        return self.value in values and self.kind in ("identifier", "symbol")

    def accept(self, value: str) -> bool:
        """Go on if this is next."""
        if self.is_next(value):
            self.advance()
            return True
        return False

    def expect(self, value: str) -> None:
        """Go on; this must be next."""
        if not self.accept(value):
            raise self.unexpected(f"`{value}`")

    def identifier(self) -> str:
        """A name without dots."""
        if self.kind != "identifier":
            raise self.unexpected("a name")
        return self.advance()

    def full_identifier(self) -> str:
        """A name that may have dots, and begin with one."""
        name = "." if self.accept(".") else ""
        name += self.identifier()
        while self.accept("."):
            name += f".{self.identifier()}"
        return name

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        start = self.start
        sign = -1 if self.accept("-") else 1
        if self.kind != "integer" or len(self.value) > 30:
            raise self.unexpected("a whole number")
        number = sign * whole(self.advance())
        if not low <= number <= high:
            raise self.invalid(f"{number} is not between {low} and {high}", start)
        return number

    def string(self) -> bytes:
        """Strings that follow each other are one."""
        if self.kind != "string":
            raise self.unexpected("a string")
        parts = []
        while self.kind == "string":
            start = self.start
            try:
                parts.append(_ESCAPE.sub(_unescaped, self.value[1:-1].encode()))
            except (ValueError, OverflowError):
                raise self.invalid("the string has an escape that does not exist", start) from None
            self.advance()
        return b"".join(parts)

    def text(self) -> str:
        """A string that is text."""
        start = self.start
        try:
            return self.string().decode()
        except UnicodeDecodeError:
            raise self.invalid("the string is not UTF-8", start) from None

    def skip_block(self) -> str:
        """Skip the block that begins with a brace here, and return what is in it."""
        self.expect("{")
        depth, words = 1, []
        while depth:
            if self.kind == "end":
                raise self.unexpected("`}`")
            depth += {"{": 1, "}": -1}.get(self.value, 0)
            words.append(self.advance())
        return " ".join(words[:-1])

    def unexpected(self, wanted: str) -> InvalidSchema:
        """Something else should have been next."""
        found = "the end" if self.kind == "end" else f"`{self.value[:50]}`"
        return self.invalid(f"{wanted} is expected, and {found} is there")

    def invalid(self, reason: str, start: int | None = None) -> InvalidSchema:
        """What is wrong, with line and column."""
        start = self.start if start is None else start
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        return InvalidSchema(reason, path=f"line {line}, column {column}")


def whole(literal: str) -> int:
    """The number that a literal of .proto stands for."""
    if literal[:2] in ("0x", "0X"):
        return int(literal, 16)
    return int(literal, 8 if literal.startswith("0") else 10)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    simple, octal, hexadecimal, short, long, other = escape.groups()
    if simple:
        return bytes((_SIMPLE[simple[0]],))
    if octal:
        return bytes((int(octal, 8),))
    if hexadecimal:
        return bytes((int(hexadecimal, 16),))
    if other is not None:
        raise ValueError(other)
    return chr(int(short or long, 16)).encode()
