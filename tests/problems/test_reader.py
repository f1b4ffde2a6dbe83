"""TOML documents: invalid files and their messages, and the line of every key compared with a writer's."""

import os
import pickle
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilescore.errors import FileError, InputError, Mistake
from pilescore.problems.reader import read_document


def write(directory, content, name="problem.toml"):
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path):
    """Return the only mistake for which a file is refused."""
    with pytest.raises(FileError) as caught:
        read_document(path)
    [mistake] = caught.value.mistakes
    assert mistake.file == str(path)
    assert str(caught.value) == str(mistake)
    return mistake


def places(content, place=()):
    """Yield every key and entry of a document."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*place, key)
        yield from places(value, (*place, key))


PROBLEM = '''\
title = "not [[data]] # nor a comment"  # nodes = 1

[domain]
x = [-1, 1]
"y axis" = [
    0,  # here ] {
    1,
]

[parameters]
k = 2.0
velocity = { unknown = [0.0, 2.0], start = 0.5 }
a.b.c = 1
a.d = """
[functions]
f = "one"
"""

[[equation]]
equation = 'dxx(u) = f'
nodes = 13

  [[ equation ]]
nodes = { x = 13, 'y axis' = 9 }

[[kernel]]
type = "sum"
[[kernel.parts]]
type = "rbf"
[kernel.parts.on]
x = true
[[kernel.parts]]
type = "matern"
[[kernel]]
type = "product"
[[kernel.parts]]
type = "rbf"
[predict.grid]
x = 1979-05-27 07:32:00.5
[predict]
operators = [["u", "]"],
  ["dx(u)"]]
'''


def test_lines_of_a_full_document(tmp_path):
    document = read_document(write(tmp_path, PROBLEM))
    expected = {
        ("title",): 1,
        ("domain",): 3,
        ("domain", "x"): 4,
        ("domain", "x", 1): 4,
        ("domain", "y axis"): 5,
        ("domain", "y axis", 1): 7,
        ("parameters", "k"): 11,
        ("parameters", "velocity", "start"): 12,
        ("parameters", "a"): 13,
        ("parameters", "a", "b", "c"): 13,
        ("parameters", "a", "d"): 14,
        ("equation",): 19,
        ("equation", 0, "equation"): 20,
        ("equation", 0, "nodes"): 21,
        ("equation", 1): 23,
        ("equation", 1, "nodes", "y axis"): 24,
        ("kernel", 0): 26,
        ("kernel", 0, "parts"): 28,
        ("kernel", 0, "parts", 0, "type"): 29,
        ("kernel", 0, "parts", 0, "on"): 30,
        ("kernel", 0, "parts", 0, "on", "x"): 31,
        ("kernel", 0, "parts", 1): 32,
        ("kernel", 1, "type"): 35,
        ("kernel", 1, "parts", 0, "type"): 37,
        ("predict",): 40,
        ("predict", "grid"): 38,
        ("predict", "grid", "x"): 39,
        ("predict", "operators"): 41,
        ("predict", "operators", 1, 0): 42,
    }
    assert {place: document.line(place) for place in expected} == expected
    assert all(document._lines.get(place) for place in places(document.content))
    assert document.content == tomllib.loads(PROBLEM)


def test_a_missing_key_has_the_line_of_its_table(tmp_path):
    document = read_document(write(tmp_path, PROBLEM))
    assert document.line(("equation", 1, "noise")) == 23
    assert document.line(("equation", 1, "nodes", "float")) == 24
    assert document.line(("equation", 7, "noise")) == 19
    assert document.line(("functions", "f")) is None
    assert document.line(()) is None


@pytest.mark.parametrize("quotes", ['"""', "'''"])
@pytest.mark.parametrize("inside", ["", "a", "\nx = 1\n", " '' \"\" ", "\n[[a]]\n", "# {"])
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_multiline_strings(tmp_path, quotes, inside, extra):
    text = f"a = {quotes}{inside}{quotes[0] * extra}{quotes}\nb = 1"
    document = read_document(write(tmp_path, text))
    assert document.line(("b",)) == 2 + inside.count("\n")


def test_backslashes_before_quotes_and_line_ends(tmp_path):
    text = '"k\\"\\u0065" = "\\\\"\nb = """\\"""\\\n  """\r\nc = \'\\\'\nd = 1'
    document = read_document(write(tmp_path, text))
    assert [document.line((key,)) for key in ('k"e', *"bcd")] == [1, 2, 4, 5]


WORDS = st.one_of(st.sampled_from(["x", "nodes", "equation", "3", "a-b"]), st.text("ab#=.[]{},\"'\\ é\n", max_size=4))
SCALARS = st.one_of(
    st.integers(-9, 9), st.floats(allow_nan=False), st.booleans(), st.text("ab#=.[]{},\"'\\ é\n", max_size=9)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=8
)


class Table(dict):
    """A table with a header of its own; others are written inline."""


TABLES = st.recursive(
    st.dictionaries(WORDS, VALUES, max_size=3).map(Table),
    lambda inner: st.dictionaries(
        WORDS, VALUES | inner | st.lists(inner, min_size=1, max_size=3).map(tuple), max_size=4
    ).map(Table),
    max_leaves=12,
)


class Writer:
    """Writes TOML in many ways, and keeps the line of every key and entry."""

    def __init__(self, random):
        self.random, self.text, self.lines = random, "", {}

    @property
    def line(self):
        return self.text.count("\n") + 1

    def string(self, value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        if self.random.random() < 0.5:
            return '"' + escaped.replace("\n", "\\n") + '"'
        if "'" not in value and "\n" not in value and self.random.random() < 0.5:
            return f"'{value}'"
        if "'" not in value and self.random.random() < 0.5:
            return f"'''\n{value}'''"
        return f'"""\n{escaped}"""'

    def key(self, name):
        bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
        if bare and self.random.random() < 0.8:
            return name
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    def space(self, newlines):
        self.text += self.random.choice(["", " ", *([" # [[x]] = {\n", "\n", "\n\n "] if newlines else [])])

    def value(self, value, place, newlines=True):
        if isinstance(value, dict):
            self.text += "{"
            for i, (key, inner) in enumerate(value.items()):
                self.text += ", " if i else ""
                self.pair(key, inner, place, newlines=False)
            self.text += "}"
        elif isinstance(value, list):
            self.text += "["
            for i, inner in enumerate(value):
                self.space(True)
                self.lines[(*place, i)] = self.line
                self.value(inner, (*place, i))
                self.space(True)
                self.text += "," if i < len(value) - 1 or self.random.random() < 0.5 else ""
            self.space(True)
            self.text += "]"
        elif isinstance(value, str):
            self.text += self.string(value)
        else:
            self.text += str(value).lower()

    def pair(self, key, value, place, newlines=True):
        place, written = (*place, key), self.key(key)
        self.lines[place] = self.line
        while isinstance(value, dict) and len(value) == 1 and self.random.random() < 0.5:
            [(key, value)] = value.items()
            place, written = (*place, key), f"{written}{self.random.choice(['.', ' . '])}{self.key(key)}"
            self.lines[place] = self.line
        self.text += f"{written}{self.random.choice(['=', ' = '])}"
        self.value(value, place)

    def table(self, table, place=(), header=""):
        below = []
        for key, value in table.items():
            if isinstance(value, Table | tuple):
                below.append((key, value))
            else:
                self.space(True)
                self.pair(key, value, place)
                self.text += self.random.choice(["\n", " # x = 1\n", "\r\n"])
        for key, value in below:
            name = f"{header}.{self.key(key)}" if header else self.key(key)
            if isinstance(value, tuple):
                for i, inner in enumerate(value):
                    self.space(True)
                    self.lines.setdefault((*place, key), self.line)
                    self.lines[(*place, key, i)] = self.line
                    self.text += f"[[{name}]]\n"
                    self.table(inner, (*place, key, i), name)
            else:
                self.space(True)
                self.lines[(*place, key)] = self.line
                self.text += f"[ {name} ]\n"
                self.table(value, (*place, key), name)


def plain(value):
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@settings(max_examples=80)
@given(table=TABLES, random=st.randoms(use_true_random=False))
def test_lines_match_those_of_a_toml_writer(tmp_path_factory, table, random):
    writer = Writer(random)
    writer.table(table)
    document = read_document(write(tmp_path_factory.getbasetemp(), writer.text))
    assert document.content == plain(table)
    assert document._lines == writer.lines


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a = 1\nb = \n", 2, "Invalid value"),
        ("a = 1\n\nvalue = sin(pi*y)\n", 3, r"text needs quotes.* of 'value = sin\(pi\*y\)'"),
        ("a = 1\na = 2\n", 2, "the key appears twice"),
        ("[a]\n[a]\n", 2, "Cannot declare"),
        ("a = 1\nb = [1,\n", 2, "at the end of the file"),
        ('a = """\n', 1, "at the end of the file"),
        ("a = 1\rb = 2", 1, "not valid TOML"),
        ("a\n", 1, "not valid TOML"),
        ("a = 2021-13-45", 1, "not valid TOML"),
        ("a = 1\nb = " + "9" * 5000, 2, r"Exceeds the limit \(4300 digits\)[^;]*$"),
        ("a = 1\nb = " + "[" * 30_000, 2, "more than 50 nested tables or arrays"),
        ("a = 1\nb = " + "{a=" * 30_000, 2, "more than 50"),
        ("\n" + "a." * 50_000 + "a = 1", 2, "more than 50"),
        ("[" + "a." * 50_000 + "a]", 1, "more than 50"),
        (b"a = 1\nb = '\xff'", 2, "found the byte 0xff; expected text in UTF-8"),
        ("a = 1".encode("utf-16"), 1, "UTF-8"),
        (b"a\0b", 1, "not valid TOML"),
    ],
)
def test_invalid_toml(tmp_path, text, line, said):
    mistake = refused(write(tmp_path, text))
    assert mistake.line == line
    with pytest.raises(FileError, match=said):
        raise FileError([mistake])
    assert len(str(mistake)) < 400


def test_dots_in_numbers_do_not_count_as_nesting(tmp_path):
    numbers = ", ".join(["1.5"] * 200)
    text = f'a = [{numbers}]\nb = "{"." * 200}" # {"[" * 200}\n'
    assert read_document(write(tmp_path, text)).line(("b",)) == 2


@pytest.mark.parametrize(
    "text", ['"\\' * 100_000, '"""' + '\\"' * 100_000, "'''" * 100_001, "'" * 300_001, "a=" * 30_000]
)
def test_hostile_texts_are_read_quickly(tmp_path, text):
    assert refused(write(tmp_path, text)).line == 1


def test_a_large_file_is_not_read(tmp_path):
    path = write(tmp_path, "")
    os.truncate(path, 10**12)
    assert refused(path).text == "found 1e+06 MB; expected at most 1 MB"
    read_document(write(tmp_path, "a = 1 # " + "x" * 999_992))
    assert "expected at most 1 MB" in refused(write(tmp_path, "a = 1 # " + "x" * 999_993)).text


def test_a_byte_order_mark_and_an_empty_file_are_accepted(tmp_path):
    document = read_document(str(write(tmp_path, b"\xef\xbb\xbfa = 1\r\nb = 2")))
    assert document.content == {"a": 1, "b": 2}
    assert document.line(("b",)) == 2
    assert read_document(write(tmp_path, "")).content == {}


def test_paths_that_are_not_files(tmp_path):
    write(tmp_path, "", "Problem.toml")
    assert refused(tmp_path / "problm.toml").text == "no such file; did you mean 'Problem.toml'?"
    assert refused(tmp_path / "heat.toml").text == "no such file; its directory has 'Problem.toml'"
    assert "there is no directory" in refused(tmp_path / "no" / "heat.toml").text
    assert "there is no directory" in refused(tmp_path / "Problem.toml" / "heat.toml").text
    assert refused(tmp_path).text == "found a directory; expected a file"
    os.mkfifo(tmp_path / "pipe.toml")
    assert refused(tmp_path / "pipe.toml").text == "found a pipe; expected a file"
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    assert refused(tmp_path / "zero.toml").text == "found a device; expected a file"
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    assert "cannot be read" in refused(tmp_path / "loop.toml").text
    assert "cannot be read" in refused(tmp_path / "a\0b.toml").text
    assert "cannot be read" in refused(tmp_path / ("a" * 300)).text


def test_a_file_without_read_permission(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, "a = 1")
    monkeypatch.setattr(Path, "open", refuse)
    assert refused(path).text == "cannot be read: Permission denied"


@settings(max_examples=100)
@given(st.binary(max_size=60) | st.text("ab#=.[]{},\"'\\ \n19", max_size=40).map(str.encode))
def test_anything_is_read_or_refused(tmp_path_factory, data):
    path = write(tmp_path_factory.getbasetemp(), data)
    try:
        document = read_document(path)
    except FileError:
        return
    assert set(document._lines) == set(places(document.content))


def test_text_of_a_mistake():
    mistake = Mistake("found 'n/a'; expected a number", "column 'u'", 17, "readings.csv")
    assert str(mistake) == "readings.csv:17: column 'u': found 'n/a'; expected a number"
    assert str(Mistake("found 1; expected 2", line=3)) == "line 3: found 1; expected 2"
    assert str(Mistake("found 1; expected 2", file="a.csv")) == "a.csv: found 1; expected 2"
    error = FileError([mistake, Mistake("all wrong")])
    assert isinstance(error, InputError)
    assert str(error) == f"{mistake}\nall wrong"
    assert pickle.loads(pickle.dumps(error)).mistakes == error.mistakes
