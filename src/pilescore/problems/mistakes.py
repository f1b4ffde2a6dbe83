"""The log of mistakes in a problem file: collected one by one, raised together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import FileError, InputError, Mistake
from .reader import Document, Place

P = ParamSpec("P")
T = TypeVar("T")


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
        """Call a function and return its result; record its `InputError` and return None."""
        try:
            return function(*arguments, **options)
        except FileError as error:
            for mistake in error.mistakes:
                if mistake.line is None and not mistake.key:  # about a whole data file: say where it is named
                    self(place, f"{mistake.file}: {mistake.text}")
                else:
                    self.mistakes.append(mistake)
        except InputError as error:
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
