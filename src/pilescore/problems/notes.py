"""The mistakes in a problem file, taken down one after the other and reported together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import FileError, InputError, Mistake
from .documents import Document
from .schema import Place

P = ParamSpec("P")
T = TypeVar("T")


class Notes:
    """All that is wrong in a document, and what is only worth saying."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.mistakes: list[Mistake] = []
        self.warnings: list[str] = []

    def __call__(self, place: Place, text: str) -> None:
        """Take down a mistake."""
        file, line = self.document.path.name, self.document.line(place)
        text = text.removeprefix(f"{place[-1]}: ") if place else text
        self.mistakes.append(Mistake(" ".join(text.split()), self.label(place), line, file))

    def attempt(self, place: Place, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T | None:
        """Return what a function returns, or take down what is wrong."""
        try:
            return function(*arguments, **options)
        except FileError as error:
            for each in error.mistakes:
                if each.line is None and not each.key:  # about another file as a whole: say where it is named
                    self(place, f"{each.file}: {each.text}")
                else:
                    self.mistakes.append(each)
        except InputError as error:
            self(place, str(error))
        return None

    def label(self, place: Place) -> str:
        """Return a place as one reads it: `[[equation]] 2: nodes`."""
        if not place:
            return ""
        first, *rest = place
        inside: Any = self.document.content.get(str(first))
        head = f"[[{first}]]" if isinstance(inside, list) else f"[{first}]" if isinstance(inside, dict) else str(first)
        if rest and isinstance(rest[0], int):
            head, rest = f"{head} {rest[0] + 1}", rest[1:]
        tail = ".".join(str(each + 1) if isinstance(each, int) else each for each in rest)
        return f"{head}: {tail}" if tail else head

    def finish(self) -> None:
        """Raise all mistakes, if there are any, in the order of the file."""
        if self.mistakes:
            name = self.document.path.name
            order = sorted(self.mistakes, key=lambda m: (m.file != name, m.file, m.line or 0))
            raise FileError(tuple(dict.fromkeys(order)))
