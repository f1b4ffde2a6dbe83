"""Columns of numbers from text tables (CSV and similar) and Parquet files; errors name every bad cell."""

from __future__ import annotations

import collections
import csv
import io
import itertools
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import FileError, Mistake, describe, did_you_mean, listed
from ..storage import file_error, opened

TEXT = (".csv", ".txt", ".tsv", ".dat")
PARQUET = (".parquet", ".pq")

_MAX_REPORTED = 10  # mistakes in rows that are reported one by one; the rest are counted
_MAX_CHARACTERS = 1_000_000  # in a line
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # surrogateescape: bytes that are not UTF-8
_SPACE_AFTER_QUOTE = re.compile('(?<=") +(?=[,;\t\n]|$)')
_MAGIC = {
    b"PAR1": "a Parquet file; expected text, or a name that ends in .parquet",
    b"PK\x03\x04": "a workbook or archive; expected text: export the table as CSV",
    b"\x1f\x8b": "a compressed file; expected text: unpack it",
    b"\xff\xfe": "text in UTF-16; expected UTF-8",
    b"\xfe\xff": "text in UTF-16; expected UTF-8",
}
_UNREADABLE = (
    f'found a row that cannot be read; expected " only at the beginning and end of a cell, both in the same line, '
    f"and cells of at most {csv.field_size_limit()} characters"
)
_HINTS = {
    "−.*": " with a hyphen as its sign",
    r"[+-]?\d*,\d+([eE][+-]?\d+)?": " with a decimal point, not a comma",
    r"[+-]?(\d+\.?\d*|\.\d+)[dD][+-]?\d+": " with e before its exponent, not d",
    r"[+-]?\d+(\.\d*)?[eE]\+?\d+": " (this number is too large for double precision)",
}


class _RowMistakes:
    """Mistakes in the rows of a file: the first few in full, then only their number in each column."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.named: list[Mistake] = []
        self._more: collections.Counter[str] = collections.Counter()

    def add(self, text: str, key: str = "", line: int | None = None, row: int | None = None) -> None:
        """Add a mistake; `row` is the row number in a file without lines."""
        if len(self.named) < _MAX_REPORTED:
            place = key if row is None else f"row {row}: {key}"
            self.named.append(Mistake(text, place, line, self.file))
        else:
            self._more[key or "rows"] += 1

    def raise_any(self, before: Sequence[Mistake] = (), after: Sequence[Mistake] = ()) -> None:
        """Raise a `FileError` with these mistakes, and those to list before and after them, if there are any."""
        more = [f"{count} in {key}" for key, count in self._more.items()]
        rest = [Mistake(f"and more like these: {listed(more)}", file=self.file)] if more else []
        mistakes = [*before, *self.named, *rest, *after]
        if mistakes:
            raise FileError(mistakes)


def read_table(
    path: Path, columns: Sequence[str], file: str | None = None, optional: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    r"""Return columns of a table, and the line of each row.

    The first line of a text table (.csv, .txt, .tsv, .dat), after comments that begin with `#`, holds the column names.
    Cells are separated by semicolons, tabs, commas or spaces: the first of these that occurs in that line.

    Parameters
    ----------
    path
        The file.
    columns
        The names of the columns to read.
    file
        The name of the file in messages; by default its path.
    optional
        The names of columns to read if they exist.

    Returns
    -------
    tuple
        The columns by name, as float64, and the line of each row in the file (Parquet: the row number), from 1.

    Raises
    ------
    FileError
        Lists all mistakes: missing columns, and cells that are not finite numbers.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory, "readings.csv")
    ...     _ = path.write_text("x, u\n0.0, 1.5\n\n0.5, 2.5\n")
    ...     read_table(path, ["u"])
    ({'u': array([1.5, 2.5])}, array([2, 4]))
    """
    file = str(path) if file is None else file
    suffix = path.suffix.lower()
    with opened(path, file, TEXT + PARQUET) as stream:
        if suffix not in TEXT + PARQUET:
            expected = f"one that ends in {', '.join(TEXT)} (text) or {' or '.join(PARQUET)}"
            raise file_error(file, f"found a file that ends in {suffix!r}; expected {expected}")
        start = stream.read(4)
        stream.seek(0)
        if suffix in PARQUET:
            if start != b"PAR1":
                expected = "Parquet, or a name that ends in .csv for text"
                raise file_error(file, f"found a file that is not Parquet; expected {expected}")
            return _read_parquet(stream, columns, file, optional)
        for magic, message in _MAGIC.items():
            if start.startswith(magic):
                raise file_error(file, f"found {message}")
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape")
        return _read_text(text, columns, file, optional)


def _find_columns(
    columns: Sequence[str], names: Sequence[str], file: str, line: int | None
) -> tuple[dict[str, int], list[Mistake]]:
    """Return the positions of columns that occur once, and mistakes about the others."""
    positions, mistakes = {}, []
    for column in dict.fromkeys(columns):
        count = names.count(column)
        if count == 1:
            positions[column] = names.index(column)
            continue
        if count:
            text = f"found {count} columns of this name; expected one"
        else:
            named = [name for name in dict.fromkeys(names) if name]
            shown = ", ".join(describe(name) for name in named[:20]) + (", …" if len(named) > 20 else "")
            hint = did_you_mean(column, named)
            text = f"found no such column; expected {f'one of {shown}' if named else 'named columns'}{hint}"
        mistakes.append(Mistake(text, f"column {column!r}", line, file))
    return positions, mistakes


def _lines(stream: io.TextIOWrapper, file: str) -> Iterator[str]:
    """Yield lines one at a time, blank lines as empty lines; refuse bytes that are not text."""
    number = 0
    # With a limit: a large file without line ends would otherwise be read into memory as one line.
    while line := stream.readline(_MAX_CHARACTERS + 1):
        number += 1
        if len(line) > _MAX_CHARACTERS:
            raise file_error(file, f"found a line of more than {_MAX_CHARACTERS} characters; expected a table", number)
        if not line.isascii() and _NOT_UTF8.search(line):
            raise file_error(file, "found bytes that are not text; expected text in UTF-8", number)
        if '"' in line:
            line = _SPACE_AFTER_QUOTE.sub("", line)
        yield line if line.strip(" \n") else "\n"


def _separator(header: str) -> str:
    unquoted = re.sub('"[^"]*"', "", header).rstrip()
    return next((mark for mark in ";\t," if mark in unquoted), " ")


def _rows(stream: io.TextIOWrapper, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every row; the first row holds the column names."""
    lines = _lines(stream, file)
    skipped, header = 0, ""
    for header in lines:
        if header.strip() and not header.lstrip().startswith("#"):
            break
        skipped += 1
    else:
        raise file_error(file, "found nothing; expected a table with the column names in its first line")
    if "\0" in header:
        raise file_error(file, "found bytes that are not text; expected a table", skipped + 1)
    mark = _separator(header)
    rest: Iterator[str] = itertools.chain([header], lines)
    if mark == " ":
        rest = (line.replace("\t", " ").rstrip(" \n") for line in rest)
    reader = csv.reader(rest, delimiter=mark, skipinitialspace=True, strict=True)
    while True:
        line = skipped + reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise file_error(file, _UNREADABLE, line) from error
        if row is None:
            return
        if skipped + reader.line_num != line:  # a cell over two lines: a stray quotation mark, which would hide rows
            raise file_error(file, _UNREADABLE, line)
        if row:
            yield line, row


def _numbers(cells: Sequence[str]) -> list[float] | None:
    """Return cells as finite numbers, or None if one is not; `float` alone accepts `1_000`, `٣` and `nan`."""
    text = "".join(cells)
    if "_" in text or not (text.isascii() or "".join(map(str.strip, cells)).isascii()):
        return None
    try:
        numbers = list(map(float, cells))
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _mistake(cell: str) -> str:
    """Return the message about a cell that is not a finite number."""
    cell = cell.strip()
    hint = next((hint for pattern, hint in _HINTS.items() if re.fullmatch(pattern, cell)), "")
    return f"found {describe(cell) if cell else 'an empty cell'}; expected a finite number{hint}"


def _read_text(
    stream: io.TextIOWrapper, columns: Sequence[str], file: str, optional: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rows = _rows(stream, file)
    first, header = next(rows)
    names = [name.strip() for name in header]
    width = len(names)
    positions, wrong = _find_columns([*columns, *(set(optional) & set(names))], names, file, first)
    if wrong and _numbers(names) is not None:
        hint = "" if first == 1 else " (lines that begin with # are comments)"
        raise file_error(file, f"found numbers in the first line; expected the column names{hint}", first)
    places = list(positions.values())
    mistakes = _RowMistakes(file)
    values, lines = array("d"), array("q")
    fatal: tuple[Mistake, ...] = ()
    try:
        for line, row in rows:
            lines.append(line)
            if len(row) > width:
                mistakes.add(f"found {len(row)} cells; expected {width}, as in the first line", line=line)
                continue
            if len(row) < width:
                row += [""] * (width - len(row))
            cells = [row[place] for place in places]
            numbers = _numbers(cells)
            if numbers is not None:
                values.extend(numbers)
                continue
            for column, cell in zip(positions, cells, strict=True):
                if _numbers([cell]) is None:
                    mistakes.add(_mistake(cell), f"column {column!r}", line)
    except FileError as error:
        fatal = error.mistakes
    if not lines and not fatal:
        fatal = (Mistake("found a header but no rows; expected at least one row", line=first, file=file),)
    mistakes.raise_any(wrong, fatal)
    table = np.array(values).reshape(len(lines), len(positions))
    return {column: table[:, i].copy() for i, column in enumerate(positions)}, np.array(lines, dtype=np.int64)


def _read_parquet(
    stream: BinaryIO, columns: Sequence[str], file: str, optional: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        text = "to read Parquet files, install pyarrow: pip install 'pilescore[parquet]'"
        raise file_error(file, text) from error
    try:
        with parquet.ParquetFile(stream, page_checksum_verification=True) as source:
            names = source.schema_arrow.names
            positions, wrong = _find_columns([*columns, *(set(optional) & set(names))], names, file, None)
            mistakes = _RowMistakes(file)
            result = {}
            for column, position in positions.items():
                dtype = source.schema_arrow.field(position).type
                if types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype):
                    result[column] = _checked(source.read([column]).column(column), column, mistakes)
                else:
                    text = f"found values of type {dtype}; expected numbers"
                    wrong.append(Mistake(text, f"column {column!r}", file=file))
            count = source.metadata.num_rows
            if any(len(values) != count for values in result.values()):
                raise file_error(file, f"found a damaged Parquet file: not every column has {count} rows")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises many types of errors for damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise file_error(file, f"found a damaged Parquet file: {reason}") from error
    none = [] if count else [Mistake("found columns but no rows; expected at least one row", file=file)]
    mistakes.raise_any(wrong, none)
    return result, np.arange(1, count + 1)


def _checked(values: Any, column: str, mistakes: _RowMistakes) -> np.ndarray:
    """Return a column of Arrow numbers as float64, and record those that are null, NaN or infinite."""
    absent = values.is_null().to_numpy()
    numbers = values.to_numpy().astype(np.float64)
    key = f"column {column!r}"
    for row in np.flatnonzero(~np.isfinite(numbers)):
        found = "null" if absent[row] else str(numbers[row])
        mistakes.add(f"found {found}; expected a finite number", key, row=int(row) + 1)
    return numbers
