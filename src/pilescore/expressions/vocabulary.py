"""Names in expressions: which may be chosen, which read as derivatives, and what was meant by one that is not there."""

from __future__ import annotations

import functools
import keyword
import unicodedata
from collections.abc import Iterable, Sequence

from ..errors import nearest
from .grammar import ExpressionError, is_name
from .scalars import FUNCTIONS

CONSTANTS = ("pi", "e")
CALCULUS = {"laplacian": "laplacian(u)", "grad": "grad(u)", "div": "div(v)", "dot": "dot(v, w)"}
RESERVED = {*CONSTANTS, "π", *FUNCTIONS, *CALCULUS, "integral"}
TIME = ("t", "time")
"""Coordinates that gradient, divergence and Laplacian leave out."""

_MEANT = {
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
    """Return the axes of a derivative such as `dxy` in their order, or None if the word is none."""
    if not word.startswith("d") or len(word) == 1:
        return None
    reading: list[tuple[int, ...] | None] = [()]  # of the first letters of what follows the d
    rest = word[1:]
    for end in range(1, len(rest) + 1):
        found = None
        for axis, name in enumerate(names):
            before = reading[end - len(name)] if len(name) <= end else None
            if before is not None and rest[:end].endswith(name):
                found = (*before, axis)
        reading.append(found)
    return reading[-1]


def check_word(name: object, role: str, names: tuple[str, ...], taken: Iterable[str]) -> None:
    """Raise an `ExpressionError` that says why something cannot be called so."""
    why = ""
    if not isinstance(name, str) or not is_name(name):
        why = "expected a letter followed by letters, digits or _"
    elif keyword.iskeyword(name):
        why = "it is a word of Python's"
    elif unicodedata.normalize("NFKC", name) != name:
        why = f"it is read as {unicodedata.normalize('NFKC', name)!r}; call it so"
    elif name in RESERVED:
        why = "the name means something else in expressions"
    elif name in taken:
        why = "something else has this name"
    elif derivative_axes(name, names) is not None:
        why = "it would be read as a derivative"
    if why:
        raise ExpressionError(f"{role} {name!r} cannot be called so: {why}")


def check_coordinates_apart(names: Sequence[str]) -> None:
    """Refuse coordinates with which a derivative can be read in two ways, as `dxx` with x and xx."""
    ahead = {b[len(a) :]: b for a in names for b in names if a != b and b.startswith(a)}
    seen: set[str] = set()
    while ahead:  # what one reading has more than the other, and the letters so far (Sardinas and Patterson)
        more = next(iter(ahead))
        letters = ahead.pop(more)
        seen.add(more)
        for name in names:
            if name == more:
                raise ExpressionError(
                    f"coordinates {', '.join(names)}: 'd{letters}' could be read as a derivative in two ways. "
                    "Call one of them otherwise"
                )
            if name.startswith(more) and name[len(more) :] not in seen:
                ahead[name[len(more) :]] = letters + name[len(more) :]
            if more.startswith(name) and more[len(name) :] not in seen:
                ahead[more[len(name) :]] = letters
    for word in sorted(RESERVED):
        if derivative_axes(word, tuple(names)) is not None:
            raise ExpressionError(
                f"coordinates {', '.join(names)}: {word!r} could be read as a derivative. Call one of them otherwise"
            )


def missing_name(name: str, known: Sequence[str], unknown: str, names: tuple[str, ...]) -> str:
    """Return what is wrong with a name that means nothing."""
    example = f"d{names[-1]}({unknown})"
    if name in FUNCTIONS or name in CALCULUS:
        return f"is a function: write {CALCULUS.get(name, name + '(…)')}"
    if derivative_axes(name, names) is not None:
        return f"is a derivative: write {name}({unknown})"
    for prefix in (f"{unknown}_", unknown):
        word = "d" + name.removeprefix(prefix)
        if name.startswith(prefix) and derivative_axes(word, names) is not None:
            return f"means nothing here: write {word}({unknown}) for this derivative"
    if name in (f"d{unknown}", f"d2{unknown}"):
        return f"means nothing here: write derivatives as {example}"
    return f"means nothing here.{_near(name, known)} Known names: {', '.join(known)}"


def missing_function(name: str, known: Sequence[str], unknown: str, names: tuple[str, ...]) -> str:
    """Return what is wrong with a call of something that is not a function."""
    example = f"d{names[-1]}({unknown})"
    if name in known:
        return f"{name} takes no argument: write {name}, its value at the point, or {name}*(…) for a product"
    if name in ("diff", "D", "d", "Derivative"):
        return f"there is no function {name!r}: write derivatives as {example}"
    functions = [*FUNCTIONS, *CALCULUS]
    derivatives = [f"d{coordinate}" for coordinate in names]
    near = _near(name, [*functions, *derivatives, *(f"d{c}{c}" for c in names)])
    return f"there is no function {name!r}.{near} There are: {', '.join(functions)}, derivatives such as {example}"


def _near(name: str, known: Sequence[str]) -> str:
    near = _MEANT[name] if name in _MEANT else nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""
