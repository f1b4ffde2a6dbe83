"""Names in expressions: which are allowed, which read as derivatives, and suggestions for unknown ones."""

from __future__ import annotations

import functools
import keyword
import unicodedata
from collections.abc import Iterable, Sequence

from ...errors import nearest
from .expressions import FUNCTIONS
from .parser import ExpressionError, is_name

CONSTANTS = ("pi", "e")
CALCULUS = {"laplacian": "laplacian(u)", "grad": "grad(u)", "div": "div(v)", "dot": "dot(v, w)"}
"""The functions of vector calculus, each with an example of its use."""
RESERVED_WORDS = {*CONSTANTS, "π", *FUNCTIONS, *CALCULUS, "integral"}
TIME = ("t", "time")
"""Coordinates that the gradient, the divergence and the Laplacian leave out."""

_SYNONYMS = {
    "π": "pi",
    "Pi": "pi",
    "PI": "pi",
    "ln": "log",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "Δ": "laplacian",
    "lap": "laplacian",
    "nabla": "grad",
}


@functools.lru_cache(maxsize=1000)
def derivative_axes(word: str, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the axes of a derivative such as `dxy`, in order, or None if the word is not a derivative."""
    if not word.startswith("d") or len(word) == 1:
        return None
    # Dynamic programming: axes_of_prefix[n] are the axes spelt by the first n letters after the "d", or None.
    axes_of_prefix: list[tuple[int, ...] | None] = [()]
    rest = word[1:]
    for end in range(1, len(rest) + 1):
        axes = None
        for axis, name in enumerate(names):
            before = axes_of_prefix[end - len(name)] if len(name) <= end else None
            if before is not None and rest[:end].endswith(name):
                axes = (*before, axis)
        axes_of_prefix.append(axes)
    return axes_of_prefix[-1]


def check_name(name: object, role: str, names: tuple[str, ...], taken: Iterable[str]) -> None:
    """Raise an `ExpressionError` if a name cannot be used in expressions."""
    why = ""
    if not isinstance(name, str) or not is_name(name):
        why = "expected a letter followed by letters, digits or _"
    elif keyword.iskeyword(name):
        why = "it is a Python keyword"
    elif unicodedata.normalize("NFKC", name) != name:
        why = f"Python reads it as {unicodedata.normalize('NFKC', name)!r}; use that name"
    elif name in RESERVED_WORDS:
        why = "it has a fixed meaning in expressions"
    elif name in taken:
        why = "the name is already in use"
    elif derivative_axes(name, names) is not None:
        why = "it would be read as a derivative"
    if why:
        raise ExpressionError(f"{role} {name!r} is not a valid name: {why}")


def check_unambiguous(names: Sequence[str]) -> None:
    """Raise an `ExpressionError` if a derivative could be read in two ways, such as `dxx` with x and xx.

    This is the Sardinas-Patterson test for unique decodability: `ahead` maps what the longer of two readings has
    beyond the shorter one to the letters read so far.
    """
    ahead = {b[len(a) :]: b for a in names for b in names if a != b and b.startswith(a)}
    seen: set[str] = set()
    while ahead:
        surplus = next(iter(ahead))
        letters = ahead.pop(surplus)
        seen.add(surplus)
        for name in names:
            if name == surplus:
                raise ExpressionError(
                    f"coordinates {', '.join(names)}: 'd{letters}' could be read as a derivative in two ways. "
                    "Rename one of the coordinates"
                )
            if name.startswith(surplus) and name[len(surplus) :] not in seen:
                ahead[name[len(surplus) :]] = letters + name[len(surplus) :]
            if surplus.startswith(name) and surplus[len(name) :] not in seen:
                ahead[surplus[len(name) :]] = letters
    for word in sorted(RESERVED_WORDS):
        if derivative_axes(word, tuple(names)) is not None:
            raise ExpressionError(
                f"coordinates {', '.join(names)}: {word!r} could be read as a derivative. Rename one of the coordinates"
            )


def unknown_name(name: str, known: Sequence[str], unknown: str, names: tuple[str, ...]) -> str:
    """Return the error message for a name without a meaning."""
    if name in FUNCTIONS or name in CALCULUS:
        return f"is a function: write {CALCULUS.get(name, name + '(…)')}"
    if derivative_axes(name, names) is not None:
        return f"is a derivative: write {name}({unknown})"
    for prefix in (f"{unknown}_", unknown):
        word = "d" + name.removeprefix(prefix)
        if name.startswith(prefix) and derivative_axes(word, names) is not None:
            return f"is not a known name: write {word}({unknown}) for this derivative"
    if name in (f"d{unknown}", f"d2{unknown}"):
        return f"is not a known name: write derivatives as d{names[-1]}({unknown})"
    return f"is not a known name.{_suggestion(name, known)} Known names: {', '.join(known)}"


def unknown_function(name: str, known: Sequence[str], unknown: str, names: tuple[str, ...]) -> str:
    """Return the error message for a call of something that is not a function."""
    example = f"d{names[-1]}({unknown})"
    if name in known:
        return f"{name} takes no argument: write {name} for its value at the point, or {name}*(…) for a product"
    if name in ("diff", "D", "d", "Derivative"):
        return f"there is no function {name!r}: write derivatives as {example}"
    functions = [*FUNCTIONS, *CALCULUS]
    hint = _suggestion(name, [*functions, *(f"d{c}" for c in names), *(f"d{c}{c}" for c in names)])
    return f"there is no function {name!r}.{hint} Functions: {', '.join(functions)}, and derivatives such as {example}"


def _suggestion(name: str, known: Sequence[str]) -> str:
    near = _SYNONYMS.get(name) or nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""
