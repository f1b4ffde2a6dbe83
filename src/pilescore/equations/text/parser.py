"""A safe parser: from the text of an expression to a tree of `Node`s.

The text is split into allowed tokens, parsed by Python's own parser (which runs nothing), and turned into `Node`s.
Anything outside the grammar raises an `ExpressionError` with its column and what to write instead.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, describe

MAX_LENGTH = 4000
"""The largest number of characters in a text."""
MAX_DEPTH = 50
"""The largest number of nested levels; a long sum or product is one level."""
MAX_NODES = 1000
"""The largest number of numbers, names, operations and calls in an expression."""

ALLOWED = "numbers, names, + - * / **, brackets ( ) and [ , ], and calls such as sin(x)"


class ExpressionError(InputError):
    """A text is not a valid expression; `column` counts from 1 and is None if the error has no single place."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


class NonlinearError(ExpressionError):
    """An expression is not linear in the unknown where it must be."""


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One node of a syntax tree: its kind, its children, and its place in the whole text.

    `kind` is "number", "name", "call", "vector", "negative", or one of + - * / **. `value` is the number or the name.
    """

    kind: str
    value: Any
    parts: tuple[Node, ...]
    text: str
    start: int
    end: int

    def walk(self, into: str | None = None) -> Iterator[Node]:
        """Yield this node and those below it in the order of the text; `into` limits whose children are visited."""
        stack = [self]  # not recursive: a chain such as 1+1+1+… may be very long
        while stack:
            node = stack.pop()
            yield node
            if into is None or node.kind in into:
                stack.extend(reversed(node.parts))

    def error(self, what: str, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        """Return an error that quotes this part of the text, with its column and what is wrong."""
        return error_at(self.text, self.start, self.end, what, kind)


def error_at(
    text: str, start: int, end: int, what: str, kind: type[ExpressionError] = ExpressionError
) -> ExpressionError:
    """Return an error about `text[start:end]`."""
    column = start + 1
    piece = describe(text[start:end].strip()) if text[start:end].strip() else "the end"
    return kind(f"{piece} at column {column}: {what}", column)


def parse(text: str, start: int = 0, end: int | None = None) -> Node:
    """Return the syntax tree of the expression `text[start:end]`; columns refer to the whole text.

    Examples
    --------
    >>> from pilescore.equations.text.parser import parse
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
    line = re.sub(r"\s", " ", text[start:end])  # one line: columns stay, and line breaks do not end the expression
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about texts such as "1(x)", which fail below
            tree = ast.parse(line, mode="eval").body
    except (RecursionError, MemoryError):
        raise error_at(text, start, end, f"is nested more than {MAX_DEPTH} levels deep") from None
    except SyntaxError as problem:
        place = start + min(max((problem.offset or 1) - 1, 0), len(line))
        raise error_at(text, place, end, f"cannot be parsed from here. Allowed: {ALLOWED}") from None
    except ValueError:
        raise error_at(text, start, end, f"cannot be parsed. Allowed: {ALLOWED}") from None
    reader = _TreeReader(text, start, line)
    reader.check_size(tree)
    return reader.node(tree)


def equals_sign(text: str) -> int:
    """Return the position of the only "=" in an equation."""
    _check_length(text)
    places = [match.start() for match in re.finditer("=", text)]
    for place in places:
        sign = re.match(r"[<>!:=]?=+", text[place - 1 :] if place and text[place - 1] in "<>!:" else text[place:])
        if sign is not None and len(sign[0]) > 1:
            begin = place - (sign[0][0] != "=")
            what = 'is not allowed: write an equation with one "=", as in dt(u) = dxx(u)'
            raise error_at(text, begin, begin + len(sign[0]), what)
    if not places:
        raise error_at(text, 0, len(text), 'expected an equation with one "=", such as dxx(u) = 0; it has none')
    if len(places) > 1:
        raise error_at(text, places[1], places[1] + 1, f'expected an equation with one "="; it has {len(places)}')
    return places[0]


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
    ".": "dots are not allowed; write sin(x), not np.sin(x), and derivatives as dx(u), dxx(u)",
    "∂": "write derivatives as dx(u), dxx(u)",
    "∇": "write grad(u), div(v) or laplacian(u)",
    "²": "write **2",
    "³": "write **3",
    "#": "comments are not allowed",
    **dict.fromkeys("−–—", "write - (the minus sign on the keyboard)"),
    **dict.fromkeys("×·⋅∙∗", "write * for a product"),
    **dict.fromkeys("÷∕⁄", "write / for a quotient"),
    **dict.fromkeys("\"'", "quotes are not allowed"),
    **dict.fromkeys("<>!", "comparisons are not allowed"),
    **dict.fromkeys("{}", "write brackets as ( )"),
}


def _check_tokens(text: str, start: int, end: int) -> None:
    """Raise an error for unknown tokens, tokens that cannot follow each other, and unmatched brackets."""
    open_at: list[int] = []
    last, before, begin = "sign", "", start  # the previous token: its kind, its text, its position
    for kind, token, place in _tokens(text, start, end):
        stop = place + len(token)
        if kind == "name" and keyword.iskeyword(token):
            raise error_at(text, place, stop, f"is a Python keyword and is not allowed. Allowed: {ALLOWED}")
        if token == "//":
            raise error_at(text, place, stop, "write / for a quotient")
        if last in ("sign", "open") and (kind == "close" or token in ("*", "/", "**", ",")):
            raise error_at(text, place, stop, f"an expression is missing before {token!r}")
        if last in ("number", "name", "close") and kind in ("number", "name"):
            raise error_at(text, begin, stop, _missing_operation(last, before, token))
        if last in ("number", "close") and kind == "open":
            raise error_at(text, begin, stop, f"an operation is missing before {token!r}: write * for a product")
        if last == "name" and token == "[":
            raise error_at(text, begin, stop, "indexing is not allowed; write the components of a vector separately")
        if kind == "open":
            open_at.append(place)
            if len(open_at) > MAX_DEPTH:
                raise error_at(text, place, end, f"is nested more than {MAX_DEPTH} levels deep")
        if kind == "close" and (not open_at or text[open_at.pop()] != {")": "(", "]": "["}[token]):
            raise error_at(text, place, stop, "this bracket has no matching opening bracket")
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
            hint = f"this character is not allowed. Allowed: {ALLOWED}"
            raise error_at(text, place, place + 1, _CHARACTERS.get(text[place], hint))
        if kind != "space":
            yield kind, match[0], place
        place = match.end()


def is_name(text: str) -> bool:
    """Whether a text is a single name token."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "name" and text.isidentifier()


_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
CHAIN = "+-*/"
"""Left-associative operations: a chain of them is read in a loop and counts as one level of nesting."""


class _TreeReader:
    """Turns Python's syntax tree into nodes."""

    def __init__(self, text: str, start: int, line: str) -> None:
        self.text, self.start = text, start
        # Python's syntax tree counts columns in UTF-8 bytes: this is the character index of each byte.
        self.place = [i for i, letter in enumerate(line) for _ in letter.encode()]
        self.place.append(len(line))

    def error(self, tree: ast.AST, what: str) -> ExpressionError:
        return error_at(self.text, *self.span(tree), what)

    def span(self, tree: Any) -> tuple[int, int]:
        return self.start + self.place[tree.col_offset], self.start + self.place[tree.end_col_offset]

    def check_size(self, tree: ast.expr) -> None:
        """Raise an error if the tree is too large or too deep; without recursion, as the tree may be very deep."""
        stack: list[tuple[ast.AST, int]] = [(tree, 1)]
        count = 0
        while stack:
            node, depth = stack.pop()
            count += 1
            if count > MAX_NODES:
                what = f"expected at most {MAX_NODES} numbers, names and operations. Define parts of it as functions"
                raise self.error(tree, what)
            if depth > MAX_DEPTH:
                raise self.error(node, f"is nested more than {MAX_DEPTH} levels deep")
            first = node.left if isinstance(node, ast.BinOp) and type(node.op) is not ast.Pow else None
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr | ast.keyword):
                    stack.append((child, depth + (child is not first)))

    def node(self, tree: ast.expr) -> Node:
        """Return the node of a tree; left-nested chains such as 1+1+1+… are read in a loop."""
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
                raise self.error(tree, "expected one expression, not a list. Write a vector as [a, b]")
            case _:
                raise self.error(tree, f"is not allowed. Allowed: {ALLOWED}")
        return Node(kind, value, tuple(self.node(part) for part in parts), self.text, *self.span(tree))
