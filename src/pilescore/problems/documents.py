"""TOML documents: read within limits, with the line of every key."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import FileError, Mistake, describe
from ..files import require_regular, unreadable

Place = tuple[str | int, ...]

_LARGEST = 1_000_000  # bytes
_DEEPEST = 50  # tables and arrays within each other; also keeps tomllib from taking forever over a.a.a.a.a.…
_SUFFIXES = (".toml",)
_HINTS = {"Invalid value": " (text goes in quotes)", "Cannot overwrite a value": " (the key is there twice)"}
_MARKS = {"[": 1, "{": 1, "]": -1, "}": -1, "=": 0, ",": 0, "\n": 0}  # how many more brackets are open after each

# A string that does not end is one token too, so that no text takes more than one pass.
_TOKEN = re.compile(
    r'''
    (?P<text>"""(?:[^"\\]|\\.|"(?!""))*+(?:""""{0,2})?|\'\'\'(?:[^']|'(?!''))*+(?:\'\'\''{0,2})?
    |"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?)
    |(?P<skip>[ \t\r]+|\#[^\n]*)
    |(?P<mark>[\n\[\]{}=,.])
    |(?P<bare>[^\s\[\]{}=,."'\#]+|.)
    ''',
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    text: str
    line: int


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
    """A TOML file that was read: its content, and where in it everything is.

    Attributes
    ----------
    path
        The file.
    content
        What is in it, as `tomllib` reads it.
    """

    path: Path
    content: dict[str, Any]
    _tokens: Sequence[_Token] = dataclasses.field(default=(), repr=False)

    @cached_property
    def _lines(self) -> dict[Place, int]:
        return _Finder(self._tokens).lines

    def line(self, place: Sequence[str | int]) -> int | None:
        """Return the line of a key or of an entry of an array; that of its table if it is not there; `None` if neither.

        Parameters
        ----------
        place
            Keys and indices from the top, as in `content`: `("equation", 1, "nodes")` is in the second `[[equation]]`.
        """
        parts = tuple(place)
        for count in range(len(parts), 0, -1):
            line = self._lines.get(parts[:count])
            if line is not None:
                return line
        return None


def read_document(path: str | os.PathLike[str]) -> Document:
    r"""Read a TOML file.

    Raises a `FileError` if it is not there, not a regular file, larger than 1 MB, not UTF-8 or not well formed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory, "problem.toml")
    ...     _ = path.write_text('[domain]\nx = [0, 1]\n\n[[data]]\nfile = "readings.csv"')
    ...     document = read_document(path)
    >>> document.content["domain"], document.line(("data", 0, "file"))
    ({'x': [0, 1]}, 5)
    """
    path = Path(path)
    file = str(path)

    def refuse(text: str, line: int | None = None) -> FileError:
        return FileError([Mistake(text, line=line, file=file)])

    size = require_regular(path, file, _SUFFIXES)
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise unreadable(file, error) from error
    if len(data) > _LARGEST:
        raise refuse(f"found {max(size, len(data)) / 1e6:.3g} MB; expected at most {_LARGEST / 1e6:g} MB")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refuse(f"found the byte 0x{data[error.start]:02x}; expected text in UTF-8", line) from error
    tokens = _tokens(text)
    deep = _too_deep(tokens)
    if deep is not None:
        raise refuse(f"found more than {_DEEPEST} tables or arrays within each other; expected fewer", deep)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError([_malformed(error, text, file)]) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # an integer of thousands of digits; the caller's stack is nearly full
        long = next((token.line for token in tokens if len(token.text) > 4000 and token.text[-1].isdigit()), None)
        raise refuse(f"cannot be read as TOML: {str(error).split(';')[0]}", long) from error
    return Document(path, content, tokens)


def _malformed(error: tomllib.TOMLDecodeError, text: str, file: str) -> Mistake:
    """Return what tomllib says, where, and what is there."""
    message = str(error)
    matched = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    lines = text.split("\n")
    if matched is None or matched[2] is None:
        reason = matched[1] if matched else message
        line = len(lines) - (len(lines) > 1 and not lines[-1])
        return Mistake(f"not well-formed TOML: {reason} at the end of the file", line=line, file=file)
    line = int(matched[2])
    found = describe(lines[line - 1].strip())
    reason = matched[1] + _HINTS.get(matched[1], "")
    if not lines[line - 1].partition("=")[0].isascii():
        reason += " (names with other letters than a to z are written in quotes)"
    return Mistake(f"not well-formed TOML: {reason} at column {matched[3]} of {found}", line=line, file=file)


def _tokens(text: str) -> list[_Token]:
    """Return the strings, marks, ends of lines and other words of a text, without comments and spaces."""
    tokens, line = [], 1
    for matched in _TOKEN.finditer(text):
        if matched.lastgroup != "skip":
            tokens.append(_Token(matched[0], line))
            line += matched[0].count("\n")
    return tokens


def _too_deep(tokens: Sequence[_Token]) -> int | None:
    """Return the first line with too many brackets open, or too many dots in a key."""
    opened = dots = 0
    for text, line in tokens:
        if text == ".":
            dots += 1
        elif text in _MARKS:
            dots = 0
            opened = max(opened + _MARKS[text], 0)
        if opened + dots > _DEEPEST:
            return line
    return None


class _Finder:
    """Finds the line of every key and entry in the tokens of a well-formed document."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self.lines: dict[Place, int] = {}
        self._tokens = [*tokens, _Token("", 0)]
        self._at = 0
        self._lengths: dict[Place, int] = {}  # of the arrays of tables
        table: Place = ()
        while self._text:
            if self._text == "[":
                table = self._header()
            elif not self._take("\n"):
                self._pair(table)

    @property
    def _text(self) -> str:
        return self._tokens[self._at].text

    def _take(self, text: str) -> bool:
        taken = self._text == text
        self._at += taken
        return taken

    def _skip_newlines(self) -> None:
        while self._take("\n"):
            pass

    def _header(self) -> Place:
        """Read `[table]` or `[[array]]` and return the place of what follows."""
        line = self._tokens[self._at].line
        self._at += 1
        array = self._take("[")
        *above, last = self._key()
        self._at += 1 + array
        place: Place = ()
        for part in above:
            place = (*place, part)
            self.lines.setdefault(place, line)
            if place in self._lengths:
                place = (*place, self._lengths[place] - 1)
        place = (*place, last)
        if array:
            self.lines.setdefault(place, line)
            self._lengths[place] = self._lengths.get(place, 0) + 1
            place = (*place, self._lengths[place] - 1)
        self.lines[place] = line
        return place

    def _key(self) -> list[str]:
        """Read a key with dots, up to what follows it."""
        parts = []
        while True:
            text = self._text
            parts.append(tomllib.loads(f"key = {text}")["key"] if text[0] in "\"'" else text)
            self._at += 1
            if not self._take("."):
                return parts

    def _pair(self, table: Place) -> None:
        """Read `key = value`."""
        line = self._tokens[self._at].line
        parts = self._key()
        for count in range(1, len(parts)):
            self.lines.setdefault((*table, *parts[:count]), line)
        place = (*table, *parts)
        self.lines[place] = line
        self._at += 1  # the equals sign
        self._value(place)

    def _value(self, place: Place) -> None:
        if self._take("["):
            self._skip_newlines()
            count = 0
            while not self._take("]"):
                entry = (*place, count)
                self.lines[entry] = self._tokens[self._at].line
                self._value(entry)
                count += 1
                self._next()
        elif self._take("{"):
            self._skip_newlines()
            while not self._take("}"):
                self._pair(place)
                self._next()
        else:
            while self._text not in ("", "\n", ",", "]", "}"):
                self._at += 1

    def _next(self) -> None:
        """Go on to the next entry, or to the bracket that closes."""
        self._skip_newlines()
        self._take(",")
        self._skip_newlines()
