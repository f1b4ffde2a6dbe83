"""Expressions as text: what may be written, checked before anything is made of it.

The text is cut into tokens of a short list, read by Python's parser (which runs nothing), and turned into `Node`s.
Whatever is not in the grammar is refused with its column and what to write instead.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, describe

MAX_LENGTH = 4000
"""Characters in a text."""
MAX_DEPTH = 50
"""Levels of nesting; a long sum or product is one level."""
MAX_NODES = 1000
"""Numbers, names, operations and calls in an expression."""

ALLOWED = "numbers, names, + - * / **, brackets ( ) and [ , ], and calls such as sin(x)"


class ExpressionError(InputError):
    """A text is not an expression of the grammar; `column` is where, from 1, if it is at one place."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class NonlinearError(ExpressionError):
    """An expression is not linear in the unknown where only linear ones can be used."""


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """A piece of an expression: what it is, its parts, and where it stands in the whole text.

    `kind` is "number", "name", "call", "vector", "negative", or one of + - * / **; `value` is the number or name.
    """

    kind: str
    value: Any
    parts: tuple[Node, ...]
    text: str
    start: int
    end: int

    def error(self, what: str, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        """Return the error that quotes this piece, says where it stands and what is wrong."""
        return error_at(self.text, self.start, self.end, what, kind)


def error_at(
    text: str, start: int, end: int, what: str, kind: type[ExpressionError] = ExpressionError
) -> ExpressionError:
    """Return an error about `text[start:end]`."""
    column = start + 1
    piece = describe(text[start:end].strip()) if text[start:end].strip() else "the end"
    return kind(f"{piece} at column {column}: {what}", column)


def parse(text: str, start: int = 0, end: int | None = None) -> Node:
    """Return the tree of an expression that is `text[start:end]`; columns are those of the whole text.

    Examples
    --------
    >>> from pilescore.expressions.grammar import parse
    >>> tree = parse("k*dx(u) + 1")
    >>> tree.kind, [part.kind for part in tree.parts]
    ('+', ['*', 'number'])
    """
    _check_length(text)
    end = len(text) if end is None else end
    if not text[start:end].strip():
        raise error_at(text, start, start, f"expected an expression ({ALLOWED}); got nothing")
    _check_tokens(text, start, end)
    start += len(text[start:end]) - len(text[start:end].lstrip())
    line = re.sub(r"\s", " ", text[start:end])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(line, mode="eval").body
    except (RecursionError, MemoryError):
        raise error_at(text, start, end, f"is nested more than {MAX_DEPTH} deep") from None
    except SyntaxError as problem:
        place = start + min(max((problem.offset or 1) - 1, 0), len(line))
        raise error_at(text, place, end, f"cannot be read from here. Allowed are {ALLOWED}") from None
    except ValueError:
        raise error_at(text, start, end, f"cannot be read. Allowed are {ALLOWED}") from None
    reader = _Reader(text, start, line)
    reader.check_size(tree)
    return reader.node(tree)


def split(text: str) -> int:
    """Return where the one "=" of an equation stands."""
    _check_length(text)
    found = [match.start() for match in re.finditer("=", text)]
    for place in found:
        sign = re.match(r"[<>!:=]?=+", text[place - 1 :] if place and text[place - 1] in "<>!:" else text[place:])
        if sign is not None and len(sign[0]) > 1:
            begin = place - (sign[0][0] != "=")
            what = 'is no part of the grammar: write an equation with one "=", as in dt(u) = dxx(u)'
            raise error_at(text, begin, begin + len(sign[0]), what)
    if not found:
        raise error_at(text, 0, len(text), 'expected an equation with one "=", such as dxx(u) = 0; it has none')
    if len(found) > 1:
        raise error_at(text, found[1], found[1] + 1, f'expected an equation with one "="; it has {len(found)}')
    return found[0]


def _check_length(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expected a text of at most {MAX_LENGTH} characters; got {len(text)}")


_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[^\W\d]\w*)"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<sign>\*\*|//|[-+*/,])"
)
_CHARACTERS = {
    "^": "write ** for a power",
    "=": "expected an expression without an equals sign",
    ".": "nothing is reached by a dot; write sin(x), not np.sin(x), and derivatives as dx(u), dxx(u)",
    "∂": "write derivatives as dx(u), dxx(u)",
    "∇": "write grad(u), div(v) or laplacian(u)",
    "²": "write **2",
    "³": "write **3",
    "#": "comments cannot stand in an expression",
    **dict.fromkeys("−–—", "write - (the minus sign of the keyboard)"),
    **dict.fromkeys("×·⋅∙∗", "write * for a product"),
    **dict.fromkeys("÷∕⁄", "write / for a quotient"),
    **dict.fromkeys("\"'", "there are no texts in quotes"),
    **dict.fromkeys("<>!", "there are no comparisons"),
    **dict.fromkeys("{}", "write brackets as ( )"),
}


def _check_tokens(text: str, start: int, end: int) -> None:
    """Refuse what is not a token, tokens that cannot follow each other, and brackets that do not match."""
    open_at: list[int] = []
    last, before, begin = "sign", "", start  # the kind of the token before, what it is and where it begins
    for kind, token, place in _tokens(text, start, end):
        stop = place + len(token)
        if kind == "name" and keyword.iskeyword(token):
            what = f"is a word of Python that is no part of the grammar. Allowed are {ALLOWED}"
            raise error_at(text, place, stop, what)
        if token == "//":
            raise error_at(text, place, stop, "write / for a quotient")
        if last in ("sign", "open") and (kind == "close" or token in ("*", "/", "**", ",")):
            raise error_at(text, place, stop, f"an expression is missing before {token!r}")
        if last in ("number", "name", "close") and kind in ("number", "name"):
            raise error_at(text, begin, stop, _missing_operation(last, before, token))
        if last in ("number", "close") and kind == "open":
            raise error_at(text, begin, stop, f"an operation is missing before {token!r}: write * for a product")
        if last == "name" and token == "[":
            what = "nothing has an index here; write the components of a vector by themselves"
            raise error_at(text, begin, stop, what)
        if kind == "open":
            open_at.append(place)
            if len(open_at) > MAX_DEPTH:
                raise error_at(text, place, end, f"is nested more than {MAX_DEPTH} deep")
        if kind == "close" and (not open_at or text[open_at.pop()] != {")": "(", "]": "["}[token]):
            raise error_at(text, place, stop, "this bracket closes none that is open")
        last, before, begin = kind, token, place
    if last in ("sign", "open"):
        raise error_at(text, begin, end, f"an expression is missing after {before!r}")
    if open_at:
        raise error_at(text, open_at[-1], open_at[-1] + 1, "this bracket is not closed")


def _missing_operation(last: str, before: str, token: str) -> str:
    what = f"an operation is missing between {before!r} and {token!r}: write {before}*{token}"
    if last == "close":
        return f"an operation is missing between {before!r} and {token!r}: write * for a product"
    return what if last == "number" else f"{what} for a product, {before}({token}) for a function"


def _tokens(text: str, start: int, end: int) -> Iterator[tuple[str, str, int]]:
    place = start
    while place < end:
        match = _TOKEN.match(text, place, end)
        kind = "" if match is None else str(match.lastgroup)
        if match is None or (kind == "name" and not match[0].isidentifier()):
            if match is not None:
                place += next(i for i in range(len(match[0])) if not match[0][: i + 1].isidentifier())
            hint = f"this character is no part of the grammar. Allowed are {ALLOWED}"
            raise error_at(text, place, place + 1, _CHARACTERS.get(text[place], hint))
        if kind != "space":
            yield kind, match[0], place
        place = match.end()


def is_name(text: str) -> bool:
    """Whether a text is a name by its letters."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "name" and text.isidentifier()


_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
CHAIN = "+-*/"
"""Operations that are read from left to right, so that many in a row are one level of nesting."""


class _Reader:
    """Turns Python's tree into nodes."""

    def __init__(self, text: str, start: int, line: str) -> None:
        self.text, self.start = text, start
        self.place = [i for i, letter in enumerate(line) for _ in letter.encode()]  # of each byte
        self.place.append(len(line))

    def error(self, tree: ast.AST, what: str) -> ExpressionError:
        return error_at(self.text, *self.span(tree), what)

    def span(self, tree: Any) -> tuple[int, int]:
        return self.start + self.place[tree.col_offset], self.start + self.place[tree.end_col_offset]

    def check_size(self, tree: ast.expr) -> None:
        """Bound the tree without recursion, so that what follows may recur."""
        stack: list[tuple[ast.AST, int]] = [(tree, 1)]
        count = 0
        while stack:
            node, depth = stack.pop()
            count += 1
            if count > MAX_NODES:
                what = f"expected at most {MAX_NODES} numbers, names and operations. Name parts of it as functions"
                raise self.error(tree, what)
            if depth > MAX_DEPTH:
                raise self.error(node, f"is nested more than {MAX_DEPTH} deep")
            first = node.left if isinstance(node, ast.BinOp) and type(node.op) is not ast.Pow else None
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr | ast.keyword):
                    stack.append((child, depth + (child is not first)))

    def node(self, tree: ast.expr) -> Node:
        spine: list[tuple[ast.BinOp, str]] = []
        while isinstance(tree, ast.BinOp) and _OPERATIONS.get(type(tree.op), "?") in CHAIN:
            spine.append((tree, _OPERATIONS[type(tree.op)]))
            tree = tree.left
        node = self.simple(tree)
        for outer, sign in reversed(spine):
            node = Node(sign, None, (node, self.node(outer.right)), self.text, *self.span(outer))
        return node

    def simple(self, tree: ast.expr) -> Node:
        kind = ""
        value: int | float | str | None = None
        parts: list[ast.expr] = []
        match tree:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                kind, value = "number", number
            case ast.Name():
                kind, value = "name", tree.id
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                kind, parts = "**", [left, right]
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.node(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                kind, parts = "negative", [operand]
            case ast.Call(func=ast.Name() as function, args=parts, keywords=[]):
                kind, value = "call", function.id
            case ast.List(elts=parts):
                kind = "vector"
            case ast.Tuple():
                raise self.error(tree, "a list stands where one expression is expected. Write a vector as [a, b]")
            case _:
                raise self.error(tree, f"is no part of the grammar. Allowed are {ALLOWED}")
        return Node(kind, value, tuple(self.node(part) for part in parts), self.text, *self.span(tree))
