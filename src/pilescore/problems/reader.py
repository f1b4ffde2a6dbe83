"""The reader of TOML files: limits on size and depth, the line of every key, and the log of mistakes."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from ..errors import FileError, InputError, MemoryLimitError, Mistake, describe
from ..storage import file_error, opened

P = ParamSpec("P")
T = TypeVar("T")
Place: TypeAlias = tuple[str | int, ...]
"""Where a key is in a file: `("equation", 1, "nodes")`."""

_MAX_BYTES = 1_000_000
_MAX_DEPTH = 50  # nested tables and arrays; tomllib takes quadratic time over a key such as a.a.a.a.a.…
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

    def line(self, place: Place) -> int | None:
        """Return the line of a key or array entry; the line of the enclosing table if it is missing; else `None`.

        Parameters
        ----------
        place
            Keys and indices from the top: `("equation", 1, "nodes")` is a key of the second `[[equation]]`.
        """
        above = (place[:count] for count in range(len(place), 0, -1))
        return next((self._lines[each] for each in above if each in self._lines), None)


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
    with opened(path, file, (".toml",)) as stream:
        data = stream.read(_MAX_BYTES + 1)
        size = max(os.fstat(stream.fileno()).st_size, len(data))
    if len(data) > _MAX_BYTES:
        raise file_error(file, f"found {size / 1e6:.3g} MB; expected at most {_MAX_BYTES / 1e6:g} MB")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise file_error(file, f"found the byte 0x{data[error.start]:02x}; expected text in UTF-8", line) from error
    tokens = _tokens(text)
    deep = _too_deep(tokens)
    if deep is not None:
        raise file_error(file, f"found more than {_MAX_DEPTH} nested tables or arrays; expected fewer", deep)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(error, text, file) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; a caller's stack nearly full
        long = next((token.line for token in tokens if len(token.text) > 4000 and token.text[-1].isdigit()), None)
        raise file_error(file, f"cannot be read as TOML: {str(error).split(';')[0]}", long) from error
    return Document(path, content, tokens)


def _malformed(error: tomllib.TOMLDecodeError, text: str, file: str) -> FileError:
    """Return the error of tomllib with its line and the text of that line."""
    message = str(error)
    matched = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    lines = text.split("\n")
    if matched is None or matched[2] is None:
        reason = matched[1] if matched else message
        line = len(lines) - (len(lines) > 1 and not lines[-1])
        return file_error(file, f"not valid TOML: {reason} at the end of the file", line)
    line = int(matched[2])
    found = describe(lines[line - 1].strip())
    reason = matched[1] + _HINTS.get(matched[1], "")
    if not lines[line - 1].partition("=")[0].isascii():
        reason += " (a name with letters other than a to z needs quotes)"
    return file_error(file, f"not valid TOML: {reason} at column {matched[3]} of {found}", line)


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


class MistakeLog:
    """All mistakes and warnings about one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.mistakes: list[Mistake] = []
        self.warnings: list[str] = []

    def __call__(self, place: Place, text: str) -> None:
        """Record a mistake."""
        file, line = self.document.path.name, self.document.line(place)
        text = text.removeprefix(f"{place[-1]}: ") if place else text
        self.mistakes.append(Mistake(" ".join(text.split()), self.label(place), line, file))

    def attempt(self, place: Place, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T | None:
        """Return the result of a function; if it raises, record the mistake and return None."""
        try:
            return function(*arguments, **options)
        except FileError as error:
            for mistake in error.mistakes:
                if mistake.line is None and not mistake.key:  # about a whole data file: say where it is named
                    self(place, f"{mistake.file}: {mistake.text}")
                else:
                    self.mistakes.append(mistake)
        except (InputError, MemoryLimitError) as error:
            self(place, str(error))
        return None

    def label(self, place: Place) -> str:
        """Return a readable place, such as `[[equation]] 2: nodes`."""
        if not place:
            return ""
        first, *rest = place
        content: Any = self.document.content.get(str(first))
        head = (
            f"[[{first}]]" if isinstance(content, list) else f"[{first}]" if isinstance(content, dict) else str(first)
        )
        if rest and isinstance(rest[0], int):
            head, rest = f"{head} {rest[0] + 1}", rest[1:]
        tail = ".".join(str(key + 1) if isinstance(key, int) else key for key in rest)
        return f"{head}: {tail}" if tail else head

    def raise_any(self) -> None:
        """Raise all mistakes as one `FileError`, in the order of the file, if there are any."""
        if self.mistakes:
            name = self.document.path.name
            order = sorted(self.mistakes, key=lambda m: (m.file != name, m.file, m.line or 0))
            raise FileError(tuple(dict.fromkeys(order)))


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
        parts: list[str] = []
        while not parts or self._take("."):
            text = self._text
            parts.append(tomllib.loads(f"key = {text}")["key"] if text[0] in "\"'" else text)
            self._at += 1
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
            self._next()
            count = 0
            while not self._take("]"):
                entry = (*place, count)
                self.lines[entry] = self._tokens[self._at].line
                self._value(entry)
                count += 1
                self._next()
        elif self._take("{"):
            self._next()
            while not self._take("}"):
                self._pair(place)
                self._next()
        else:
            while self._text not in ("", "\n", ",", "]", "}"):
                self._at += 1

    def _next(self) -> None:
        """Move over line ends and commas to the next entry, or to the closing bracket."""
        while self._take("\n") or self._take(","):
            pass
