"""Count the modules, layers, lines of code and comments, public names and parameters of the package.

    python -m benchmarks.house                   # this checkout
    python -m benchmarks.house --against v0.1.0  # compared with another git revision

A line of code is not blank, a comment or a docstring. A comment line contains only a comment; a remark is a comment
after code. Instructions to tools (`# noqa`, `# type:`, `# fmt:`) count as neither.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import inspect
import io
import subprocess
import tarfile
import tokenize
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pilescore as ps

ROOT = Path(__file__).parents[1]
SOURCE = "src/pilescore/"
MOST_PARAMETERS = 8
TO_TOOLS = ("# noqa", "# type:", "# fmt:")
NAMESPACES = ("kernels", "domains", "quadrature", "solvers", "errors")
NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


@dataclasses.dataclass
class Lines:
    """The numbers of modules and lines in a top-level entry of the package."""

    modules: int = 0
    code: int = 0
    comments: int = 0
    remarks: int = 0

    def add(self, other: Lines) -> None:
        """Add the counts of another entry."""
        self.modules += other.modules
        self.code += other.code
        self.comments += other.comments
        self.remarks += other.remarks


def count_lines(text: str) -> Lines:
    """Count the lines of code and comments in a module."""
    strings = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    docstrings = {
        line
        for node in strings
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code, comments = set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if not token.string.startswith(TO_TOOLS):
                comments.add(token.start[0])
        elif token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return Lines(1, len(code - docstrings), len(comments - code), len(comments & code))


def count_entries(files: Iterable[tuple[str, str]]) -> dict[str, Lines]:
    """Count the lines of each top-level entry of the package, from pairs of path and text."""
    entries: dict[str, Lines] = collections.defaultdict(Lines)
    for path, text in files:
        entries[path.split("/")[0]].add(count_lines(text))
    return dict(sorted(entries.items()))


def files_here() -> Iterator[tuple[str, str]]:
    """Yield path and text of each module in this checkout."""
    package = ROOT / SOURCE
    for path in package.rglob("*.py"):
        yield path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")


def files_of(revision: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each module in a git revision."""
    command = ["git", "archive", "--format=tar", revision, SOURCE]
    packed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                yield member.name.removeprefix(SOURCE), content.read().decode()


def public_objects() -> dict[str, Any]:
    """Return all public objects by dotted name."""
    found = {name: getattr(ps, name) for name in ps.__all__}
    for space in NAMESPACES:
        module = getattr(ps, space, None)
        if isinstance(module, types.ModuleType):
            names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
            found |= {f"{space}.{name}": getattr(module, name) for name in names}
    return found


def parameters(objects: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the number of parameters of public functions, constructors and methods, by kind and name."""
    counts: dict[str, dict[str, int]] = {"function": {}, "constructor": {}, "method": {}}
    for name, thing in objects.items():
        module = str(getattr(thing, "__module__", ""))
        if not module.startswith("pilescore"):
            continue
        if inspect.isclass(thing):
            if not issubclass(thing, BaseException):
                counts["constructor"][name] = len(inspect.signature(thing).parameters)
            for method, function in vars(thing).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    counts["method"][f"{name}.{method}"] = len(inspect.signature(function).parameters) - 1  # self
        elif callable(thing):
            counts["function"][name] = len(inspect.signature(thing).parameters)
    return counts


def compare(entries: Mapping[str, Lines], others: Mapping[str, Lines], revision: str) -> None:
    """Print the lines of code of two revisions side by side."""
    print(f"\n| entry | code | code at {revision} |\n|---|---|---|")
    for name in sorted({*entries, *others}):
        print(f"| {name} | {entries[name].code if name in entries else '–'} "
              f"| {others[name].code if name in others else '–'} |")  # fmt: skip
    now, then = (sum(lines.code for lines in each.values()) for each in (entries, others))
    print(f"| **all** | {now} | {then} |\n\n{now / then - 1:+.1%} lines of code.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REV", help="a git revision to compare with")
    revision = parser.parse_args().against
    entries = count_entries(files_here())
    total = Lines()
    for lines in entries.values():
        total.add(lines)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["pilescore"])
    print("| quantity | count |\n|---|---|")
    inside = entries.keys() - {"__init__.py", "__main__.py"}
    print(f"| top-level entries, without `__init__` and `__main__` | {len(inside)} |")
    print(f"| layers in the contract | {len(layers)} |\n| modules | {total.modules} |")
    print(f"| lines of code | {total.code} |\n| lines of code per comment line | {total.code / total.comments:.0f} |")
    print(f"| public names, `len(ps.__all__)` | {len(ps.__all__)} |")
    for kind, counts in parameters(public_objects()).items():
        worst = max(counts, key=lambda name: counts[name])
        over = sum(count > MOST_PARAMETERS for count in counts.values())
        print(f"| most parameters of a public {kind} | {counts[worst]} (`{worst}`); {over} above {MOST_PARAMETERS} |")
    print("\n| entry | modules | code | comment lines | remarks |\n|---|---|---|---|---|")
    for name, lines in entries.items():
        print(f"| {name} | {lines.modules} | {lines.code} | {lines.comments} | {lines.remarks} |")
    print(f"| **all** | {total.modules} | {total.code} | {total.comments} | {total.remarks} |")
    if revision is not None:
        compare(entries, count_entries(files_of(revision)), revision)


if __name__ == "__main__":
    main()
