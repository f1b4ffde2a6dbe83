"""Columns of text tables and Parquet files: accepted formats, and the place of every mistake."""

import csv
import decimal
import io
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilescore.errors import FileError
from pilescore.problems.data_files import read_table


def write(directory, content, name="readings.csv"):
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_parquet(directory, columns, name="readings.parquet"):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pyarrow.parquet.write_table(table, directory / name)
    return directory / name


def refused(path, columns=("x", "u")):
    """Return the mistakes for which a file is refused, as strings."""
    with pytest.raises(FileError) as caught:
        read_table(path, columns, file="T")
    assert all(mistake.file == "T" for mistake in caught.value.mistakes)
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x,u\n1,2\n3,4\n", [2, 3]),
        ("x,u\n1,2\n3,4", [2, 3]),
        ("x,u\r\n1,2\r\n3,4\r\n", [2, 3]),
        ("x,u\r1,2\r3,4\r", [2, 3]),
        ("\ufeffx,u\n1,2\n3,4", [2, 3]),
        ("# made by hand\n#\n\nx,u\n\n1,2\n  \n\n3,4\n\n\n", [6, 9]),
        ("\ufeff# 1,2\n \t\nx,u\n1,2\n3,4", [4, 5]),
        (" x , u \n 1 ,2 \n\t3, 4\xa0", [2, 3]),
        ("x;u\n1;2\n3;4", [2, 3]),
        ("x\tu\n1\t2\n3\t4", [2, 3]),
        ("x u\n1 2\n3 4", [2, 3]),
        ("  x   u  \n 1\t2\n\n  3     4  \n \t \n", [2, 4]),
        ('"x","u"\n"1","2"\n"3", "4"', [2, 3]),
        ('"x" , "u" \n"1" , "2"\n3,4', [2, 3]),
        ('"x" "u"\n"1"  "2"\n3 4', [2, 3]),
        ('u,x,"note; with, all\tof it"\n2,1,"1,2;3"\n4,3,"say ""so"""', [2, 3]),
        ("u;x;note, long\n2;1;a\n4;3;b", [2, 3]),
        ("note,u,x,note\n,2,1,\nn/a,4,3,nan", [2, 3]),
        ("x,u,note\n1,2\n3,4", [2, 3]),
        ("x,u,\n1,2,\n3,4,", [2, 3]),
        ("\tx\tu\n0\t1\t2\n1\t3\t4", [2, 3]),
        ("x,u\n+1.,2e0\n3.00,.4E+1", [2, 3]),
        ("x,u,Größe\n1,2,ä\n3,4,\u2028", [2, 3]),
        ("x,u,_\n1,2,a_b\n3,4,\0", [2, 3]),
    ],
)
def test_accepted_table_formats(tmp_path, text, lines):
    columns, found = read_table(write(tmp_path, text), ["x", "u"])
    assert list(columns) == ["x", "u"]
    assert columns["x"].tolist() == [1, 3]
    assert columns["u"].tolist() == [2, 4]
    assert found.tolist() == lines
    assert columns["x"].dtype == np.float64


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".tsv", ".dat", ".CSV"])
def test_suffixes_of_text(tmp_path, suffix):
    columns, _ = read_table(write(tmp_path, "x\n1", f"a{suffix}"), ["x", "x"])
    assert columns["x"].tolist() == [1]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers()), min_size=1))
def test_numbers_are_read_exactly(tmp_path_factory, rows):
    text = io.StringIO()
    csv.writer(text).writerows([("x", "u"), *rows])
    columns, lines = read_table(write(tmp_path_factory.getbasetemp(), text.getvalue()), ["x", "u"])
    assert columns["x"].tolist() == [x for x, _ in rows]
    assert columns["u"].tolist() == [float(u) for _, u in rows]
    assert lines.tolist() == list(range(2, len(rows) + 2))


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("n/a", "found 'n/a'; expected a finite number"),
        ("", "found an empty cell; expected a finite number"),
        ("  ", "found an empty cell; expected a finite number"),
        ("1,5", "found '1,5'; expected a finite number with a decimal point, not a comma"),
        ("-,5e3", "found '-,5e3'; expected a finite number with a decimal point, not a comma"),
        ("1.0D+00", "found '1.0D+00'; expected a finite number with e before its exponent, not d"),
        ("1e400", "found '1e400'; expected a finite number (this number is too large for double precision)"),
        ("−1.5", "found '−1.5'; expected a finite number with a hyphen as its sign"),
        *(
            (cell, f"found {cell!r}; expected a finite number")
            for cell in (
                *("nan", "NaN", "-nan", "inf", "-Infinity", "NA", "None", "null", "True", "false", "1_000", "0x10"),
                *("0b1", "1L", "1f", "1+2j", "1 2", "--1", "1e", ".", "-", "1e5.0", "٣", "１", "½", "1%", "1\xa0000"),
                *("12:30", "2020-01-01", "# 1", "1\x002"),
            )
        ),
    ],
)
def test_cells_that_are_not_numbers(tmp_path, cell, said):
    path = write(tmp_path, f"# made\n\nx;u;v\n1;2;3\n\n4;{cell};6\n7;8;9")
    assert refused(path) == [f"T:6: column 'u': {said}"]
    read_table(path, ["x", "v"])
    assert refused(write(tmp_path, f'x\n"{cell}"'), ["x"]) == [f"T:2: column 'x': {said}"]


def test_a_long_cell_is_shortened_in_messages(tmp_path):
    [said] = refused(write(tmp_path, "x,u\n1," + "a" * 100_000))
    assert len(said) < 200
    assert refused(write(tmp_path, "x,u\n1," + "a" * 200_000))[0].startswith("T:2: found a row that cannot be read")


def test_all_mistakes_are_reported_and_the_first_are_named(tmp_path):
    rows = ["1,n/a,5"] * 12 + ["inf,2,5"] * 3 + ["1,2"] * 2 + ["1,2,3,4"]
    found = refused(write(tmp_path, "x,u,v\n" + "\n".join(rows)), ["x", "u", "v", "w"])
    assert found[0] == "T:1: column 'w': found no such column; expected one of 'x', 'u', 'v'"
    assert found[1:11] == [f"T:{line}: column 'u': found 'n/a'; expected a finite number" for line in range(2, 12)]
    assert found[11:] == ["T: and more like these: 2 in column 'u', 3 in column 'x', 2 in column 'v' and 1 in rows"]


def test_rows_of_the_wrong_length(tmp_path):
    assert refused(write(tmp_path, "x,u\n1,2\n\n1,2,3\n4\n")) == [
        "T:4: found 3 cells; expected 2, as in the first line",
        "T:5: column 'u': found an empty cell; expected a finite number",
    ]


def test_missing_columns(tmp_path):
    path = write(tmp_path, "#\nX,temperature,u,u\n1,2,3,4")
    assert refused(path, ["x", "temprature", "U", "u", "q"]) == [
        f"T:2: column {name}"
        for name in (
            "'x': found no such column; expected one of 'X', 'temperature', 'u'; did you mean 'X'?",
            "'temprature': found no such column; expected one of 'X', 'temperature', 'u'; did you mean 'temperature'?",
            "'U': found no such column; expected one of 'X', 'temperature', 'u'; did you mean 'u'?",
            "'u': found 2 columns of this name; expected one",
            "'q': found no such column; expected one of 'X', 'temperature', 'u'",
        )
    ]
    assert refused(write(tmp_path, ",,\n1,2,3"), ["q"])[0].endswith("expected named columns")
    [said] = refused(write(tmp_path, ",".join(f"c{i}" for i in range(50_000)) + "\n1"), ["q"])
    assert said.endswith("'c18', 'c19', …")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "T: found nothing; expected a table with the column names in its first line"),
        ("\n \n# x,u\n", "T: found nothing; expected a table with the column names in its first line"),
        ("\t\n", "T: found nothing; expected a table with the column names in its first line"),
        ("\nx,u\n\n", "T:2: found a header but no rows; expected at least one row"),
        ("1,2\n3,4", "T:1: found numbers in the first line; expected the column names"),
        (
            "# x u\n1 2\n",
            "T:2: found numbers in the first line; expected the column names (lines that begin with",
        ),
        (b"x,u\n1,2\n3,\xff", "T:3: found bytes that are not text; expected text in UTF-8"),
        ("x,u\n1,2".encode("utf-16"), "T: found text in UTF-16; expected UTF-8"),
        ("x,u\n1,2".encode("utf-16-be"), "T:1: found bytes that are not text; expected a table"),
        (b"PAR1....PAR1", "T: found a Parquet file; expected text, or a name that ends in .parquet"),
        (b"PK\x03\x04....", "T: found a workbook or archive; expected text: export the table as CSV"),
        (b"\x1f\x8b\x08....", "T: found a compressed file; expected text: unpack it"),
        ("x,u\n" + "1" * 2_000_000, "T:2: found a line of more than 1000000 characters; expected a table"),
        ("," * 2_000_000, "T:1: found a line of more than 1000000 characters; expected a table"),
        ('x,u\n1,2\n3,"4\n5,6\n7,"8"\n', 'T:3: found a row that cannot be read; expected "'),
        ('x,u,v\n1,2,"a\n3,4,b"\n5,6,c', 'T:2: found a row that cannot be read; expected "'),
        ('x,u\n1,2\n3,"4', 'T:3: found a row that cannot be read; expected "'),
        ('x,u\n1,2\n3,"4"5', 'T:3: found a row that cannot be read; expected "'),
        ('"x,u\n1,2\n', 'T:1: found a row that cannot be read; expected "'),
    ],
)
def test_files_that_are_not_tables(tmp_path, content, said):
    [found] = refused(write(tmp_path, content))
    assert found.startswith(said)


def test_fatal_errors_are_reported_after_other_mistakes(tmp_path):
    assert refused(write(tmp_path, b"x,u\n1,a\n2,\xff\n3,b")) == [
        "T:2: column 'u': found 'a'; expected a finite number",
        "T:3: found bytes that are not text; expected text in UTF-8",
    ]


def test_numbers_as_column_names(tmp_path):
    assert read_table(write(tmp_path, "0,1\n2,3"), ["1"])[0]["1"].tolist() == [3]


def test_paths_that_are_not_tables(tmp_path):
    path = write(tmp_path, "x,u\n1,2")
    assert refused(tmp_path / "reading.csv") == ["T: no such file; did you mean 'readings.csv'?"]
    assert refused(tmp_path) == ["T: found a directory; expected a file"]
    os.mkfifo(tmp_path / "pipe.csv")
    assert refused(tmp_path / "pipe.csv") == ["T: found a pipe; expected a file"]
    [said] = refused(path.rename(tmp_path / "readings.xlsx"))
    assert said.startswith("T: found a file that ends in '.xlsx'; expected one that ends in .csv, .txt, ")
    with pytest.raises(FileError, match=r"none\.csv: no such file"):
        read_table(tmp_path / "none.csv", ["x"])


def test_a_file_without_read_permission(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, "x,u\n1,2")
    monkeypatch.setattr(Path, "open", refuse)
    assert refused(path) == ["T: cannot be read: Permission denied"]


@pytest.mark.parametrize("suffix", [".parquet", ".pq"])
def test_parquet(tmp_path, suffix):
    columns = {
        "x": pa.array([1, 2, 3], pa.int8()),
        "u": pa.chunked_array([[0.1], [0.2, 1e300]]),
        "half": pa.array([0.5, 1.5, 2.5], pa.float16()),
        "large": pa.array([1, 2, 2**64 - 1], pa.uint64()),
        "exact": pa.array([decimal.Decimal("0.1"), decimal.Decimal("-2.7"), decimal.Decimal("3.3")]),
        "a.b": [7.0, 8.0, 9.0],
        "note": ["a", None, "b"],
    }
    path = write_parquet(tmp_path, columns, f"readings{suffix}")
    found, rows = read_table(path, [*columns][:-1])
    assert {name: values.tolist() for name, values in found.items()} == {
        "x": [1, 2, 3],
        "u": [0.1, 0.2, 1e300],
        "half": [0.5, 1.5, 2.5],
        "large": [1, 2, 2.0**64],
        "exact": [0.1, -2.7, 3.3],
        "a.b": [7, 8, 9],
    }
    assert all(values.dtype == np.float64 for values in found.values())
    assert rows.tolist() == [1, 2, 3]


def test_mistakes_in_parquet(tmp_path):
    path = write_parquet(
        tmp_path,
        {
            "x": [1.0, None, float("nan"), -np.inf] + [1.0] * 10,
            "n": [None] * 12 + [1, 2],
            "d": [decimal.Decimal("0.1"), None] * 7,
            "s": ["1.5"] * 14,
            "b": [True] * 14,
            "none": [None] * 14,
            "struct": [{"x": 1.0}] * 14,
        },
    )
    assert refused(path, ["x", "n", "d", "s", "b", "none", "struct", "X"]) == [
        "T: column 'X': found no such column; expected one of 'x', 'n', 'd', 's', 'b', 'none', 'struct'; "
        "did you mean 'x'?",
        "T: column 's': found values of type string; expected numbers",
        "T: column 'b': found values of type bool; expected numbers",
        "T: column 'none': found values of type null; expected numbers",
        "T: column 'struct': found values of type struct<x: double>; expected numbers",
        "T: row 2: column 'x': found null; expected a finite number",
        "T: row 3: column 'x': found nan; expected a finite number",
        "T: row 4: column 'x': found -inf; expected a finite number",
        *(f"T: row {row}: column 'n': found null; expected a finite number" for row in range(1, 8)),
        "T: and more like these: 5 in column 'n' and 7 in column 'd'",
    ]


def test_parquet_with_duplicate_columns(tmp_path):
    path = write_parquet(tmp_path, pa.table([[1.0], [2.0], [3.0]], names=["x", "u", "u"]))
    assert refused(path) == ["T: column 'u': found 2 columns of this name; expected one"]


def test_parquet_without_rows(tmp_path):
    path = write_parquet(tmp_path, {"x": pa.array([], pa.float64())})
    assert refused(path, ["x"]) == ["T: found columns but no rows; expected at least one row"]


def test_files_that_are_not_parquet(tmp_path):
    [said] = refused(write(tmp_path, "x,u\n1,2", "a.parquet"))
    assert said == "T: found a file that is not Parquet; expected Parquet, or a name that ends in .csv for text"
    [said] = refused(write(tmp_path, b"PAR1" + b"\0" * 50, "a.parquet"))
    assert said.startswith("T: found a damaged Parquet file: ")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    path = write_parquet(tmp_path, {"x": [1.0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused(path, ["x"]) == ["T: to read Parquet files, install pyarrow: pip install 'pilescore[parquet]'"]


GOOD = b'# made\nx,u,note\n1,2,"a"\n\n3.5,-4e-1,b\n5,6,"c,d"\n'


@st.composite
def damaged(draw, good):
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(
            st.binary(max_size=3) | st.sampled_from(b'"\n\r,;\t #\0').map(bytes)
        )
    return bytes(data)


@settings(max_examples=200)
@given(st.binary(max_size=50) | st.text('xu,;\t "\n\r#1.e-', max_size=30).map(str.encode) | damaged(GOOD))
@example(b'x,u\n"')
@example(b"\x0c")
@example(b'""')
def test_any_text_is_read_or_refused(tmp_path_factory, data):
    path = write(tmp_path_factory.getbasetemp(), data)
    try:
        columns, lines = read_table(path, ["x", "u"])
    except FileError:
        return
    assert all(values.shape == lines.shape and np.isfinite(values).all() for values in columns.values())
    assert (np.diff(lines) > 0).all()
    assert lines[-1] <= len(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))


@settings(max_examples=80)
@given(data=st.data())
def test_any_parquet_is_read_or_refused(tmp_path_factory, data):
    directory = tmp_path_factory.getbasetemp()
    good = write_parquet(directory, {"x": [1.0, 2.0], "u": [3, None]}).read_bytes()
    path = write(directory, b"PAR1" + data.draw(damaged(good[4:])), "damaged.parquet")
    try:
        columns, rows = read_table(path, ["x"])
    except FileError:
        return
    assert columns["x"].shape == rows.shape
