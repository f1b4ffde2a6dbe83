"""The reader of TOML files: limits on size and depth, and the line of every key."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..errors import FileError, Mistake, describe
from ..storage import require_regular, unreadable

Place: TypeAlias = tuple[str | int, ...]
"""Where a key is in a file: `("equation", 1, "nodes")`."""

_MAX_BYTES = 1_000_000
_MAX_DEPTH = 50  # nested tables and arrays; tomllib takes quadratic time over a key such as a.a.a.a.a.…
_SUFFIXES = (".toml",)
_HINTS = {"Invalid value": " (text needs quotes)", "Cannot overwrite a value": " (the key appears twice)"}
_MARKS = {"[": 1, "{": 1, "]": -1, "}": -1, "=": 0, ",": 0, "\n": 0}  # the change of depth at each mark

# An unterminated string is one token too, and quantifiers are possessive (*+): every text takes a single pass.
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
    """The content of a TOML file, with the line of every key."""

    path: Path
    """The file."""
    content: dict[str, Any]
    """The content as `tomllib` reads it."""
    _tokens: Sequence[_Token] = dataclasses.field(default=(), repr=False)

    @cached_property
    def _lines(self) -> dict[Place, int]:
        return _Finder(self._tokens).lines

    def line(self, place: Sequence[str | int]) -> int | None:
        """Return the line of a key or array entry; the line of the enclosing table if it is missing; else `None`.

        Parameters
        ----------
        place
            Keys and indices from the top: `("equation", 1, "nodes")` is a key of the second `[[equation]]`.
        """
        keys = tuple(place)
        for count in range(len(keys), 0, -1):
            line = self._lines.get(keys[:count])
            if line is not None:
                return line
        return None


def read_document(path: str | os.PathLike[str]) -> Document:
    r"""Read a TOML file.

    Raises a `FileError` if it does not exist, is not a regular file, is larger than 1 MB, is not UTF-8 or is not valid
    TOML.

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
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise unreadable(file, error) from error
    if len(data) > _MAX_BYTES:
        raise refuse(f"found {max(size, len(data)) / 1e6:.3g} MB; expected at most {_MAX_BYTES / 1e6:g} MB")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refuse(f"found the byte 0x{data[error.start]:02x}; expected text in UTF-8", line) from error
    tokens = _tokens(text)
    deep = _too_deep(tokens)
    if deep is not None:
        raise refuse(f"found more than {_MAX_DEPTH} nested tables or arrays; expected fewer", deep)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError([_malformed(error, text, file)]) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; a caller's stack nearly full
        long = next((token.line for token in tokens if len(token.text) > 4000 and token.text[-1].isdigit()), None)
        raise refuse(f"cannot be read as TOML: {str(error).split(';')[0]}", long) from error
    return Document(path, content, tokens)


def _malformed(error: tomllib.TOMLDecodeError, text: str, file: str) -> Mistake:
    """Return the error of tomllib with its line and the text of that line."""
    message = str(error)
    matched = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    lines = text.split("\n")
    if matched is None or matched[2] is None:
        reason = matched[1] if matched else message
        line = len(lines) - (len(lines) > 1 and not lines[-1])
        return Mistake(f"not valid TOML: {reason} at the end of the file", line=line, file=file)
    line = int(matched[2])
    found = describe(lines[line - 1].strip())
    reason = matched[1] + _HINTS.get(matched[1], "")
    if not lines[line - 1].partition("=")[0].isascii():
        reason += " (a name with letters other than a to z needs quotes)"
    return Mistake(f"not valid TOML: {reason} at column {matched[3]} of {found}", line=line, file=file)


def _tokens(text: str) -> list[_Token]:
    """Split a text into strings, marks, line ends and bare words; drop comments and spaces."""
    tokens, line = [], 1
    for matched in _TOKEN.finditer(text):
        if matched.lastgroup != "skip":
            tokens.append(_Token(matched[0], line))
            line += matched[0].count("\n")
    return tokens


def _too_deep(tokens: Sequence[_Token]) -> int | None:
    """Return the first line with too many open brackets, or too many dots in a key; None if there is none."""
    opened = dots = 0
    for text, line in tokens:
        if text == ".":
            dots += 1
        elif text in _MARKS:
            dots = 0
            opened = max(opened + _MARKS[text], 0)
        if opened + dots > _MAX_DEPTH:
            return line
    return None


class _Finder:
    """Finds the line of every key and array entry. The document is valid TOML, so nothing is checked here."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self.lines: dict[Place, int] = {}
        self._tokens = [*tokens, _Token("", 0)]
        self._at = 0
        self._lengths: dict[Place, int] = {}  # the number of tables so far in each array of tables
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
        """Read `[table]` or `[[array]]` and return the place of the keys that follow."""
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
        """Read a dotted key."""
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
        """Move to the next entry, or to the closing bracket."""
        self._skip_newlines()
        self._take(",")
        self._skip_newlines()
