"""The journal of a search: every evaluation is kept on disk, and one that is there is not computed again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from .errors import (
    InputError,
    MemoryLimitError,
    NotPositiveDefiniteError,
    NotSolvedError,
    PilescoreError,
    SaveError,
    SmoothnessError,
)
from .records import Kept, Record
from .score import Pile

TERMS = [field.name for field in dataclasses.fields(Pile) if field.name not in ("shares", "solver")]

KINDS = {kind.__name__: kind for kind in (InputError, SmoothnessError, NotPositiveDefiniteError, NotSolvedError)}

Scored = tuple[Pile, Float[np.ndarray, " p"]]
"""PILE and its gradient in the coordinates of a search."""


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One evaluation: the score, or why there is none."""

    u: Float[np.ndarray, " p"]
    scored: Scored | None
    error: str = ""
    reason: str = ""

    def outcome(self) -> Scored:
        """Return the score, or raise the error that there was."""
        if self.scored is not None:
            return self.scored
        raise KINDS.get(self.error, PilescoreError)(self.reason)


class Journal(Kept):
    """The evaluations of one search by their coordinates, bit by bit; descents that are run again replay them.

    As a context it is on disk when the context ends, however it ends.
    """

    work = "minimisation"
    depends = "model, bounds, starts, ties or option"

    def __init__(self, names: Sequence[str], blocks: Sequence[str], mark: str, record: Record) -> None:
        super().__init__(mark)
        self.names = tuple(names)
        self.blocks = tuple(blocks)
        self.record = record
        self.entries: dict[bytes, Entry] = {}
        self.closed = False
        self.resume(record)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.finish(self.record)
        except SaveError:
            if kind is None:
                raise

    @property
    def complete(self) -> bool:
        """Whether the search has ended by itself."""
        return self.closed

    def close(self) -> None:
        """Note that the search has ended by itself."""
        self.changed |= not self.closed
        self.closed = True

    def look_up(self, u: Float[np.ndarray, " p"], compute: Callable[[Float[np.ndarray, " p"]], Scored]) -> Scored:
        """Return what is known at `u`, or compute it and keep it; several threads may do so at once."""
        key = u.tobytes()
        if key not in self.entries:
            try:
                entry = Entry(u.copy(), compute(u))
            except MemoryLimitError:  # says nothing about the point
                raise
            except PilescoreError as failure:
                entry = Entry(u.copy(), None, type(failure).__name__, str(failure))
            self.entries.setdefault(key, entry)
            self.changed = True
            self.checkpoint(self.record)
        return self.entries[key].outcome()

    def dataset(self) -> xr.Dataset:
        """Return what is there: a row for each evaluation."""
        entries = list(self.entries.values())
        coordinates = {"hyperparameter": _texts(self.names), "block": _texts(self.blocks)}
        attributes = {"fingerprint": self.mark, "complete": "yes" if self.closed else "no"}
        if not entries:
            return xr.Dataset({}, coordinates, attributes)
        count = len(entries)
        u, gradient = np.full((2, count, len(self.names)), np.nan)
        shares, terms = np.full((count, len(self.blocks)), np.nan), np.full((len(TERMS), count), np.nan)
        for i, entry in enumerate(entries):
            u[i] = entry.u
            if entry.scored is not None:
                score, gradient[i] = entry.scored
                terms[:, i] = [getattr(score, name) for name in TERMS]
                shares[i] = [score.shares[block] for block in self.blocks]
        variables: dict[str, Any] = {name: ("evaluation", row) for name, row in zip(TERMS, terms, strict=True)}
        variables["u"] = (("evaluation", "hyperparameter"), u)
        variables["gradient"] = (("evaluation", "hyperparameter"), gradient)
        variables["shares"] = (("evaluation", "block"), shares)
        accounts = ("" if entry.scored is None else entry.scored[0].solver for entry in entries)
        variables["solver"] = ("evaluation", _texts(accounts))
        variables["error"] = ("evaluation", _texts(entry.error for entry in entries))
        variables["reason"] = ("evaluation", _texts(entry.reason for entry in entries))
        return xr.Dataset(variables, coordinates, attributes)

    def take(self, old: xr.Dataset) -> None:
        """Take over what is on disk."""
        self.closed = old.attrs["complete"] == "yes"
        if "u" not in old:
            return
        points, gradients, shares = (old[name].values.astype(float) for name in ("u", "gradient", "shares"))
        terms = np.array([old[name].values.astype(float) for name in TERMS]).T
        errors, reasons, accounts = (old[name].values.tolist() for name in ("error", "reason", "solver"))
        for i, u in enumerate(points):
            scored = None
            if not errors[i]:
                fields: dict[str, Any] = dict(zip(TERMS, terms[i].tolist(), strict=True))
                fields["size"] = int(fields["size"])
                fields["shares"] = dict(zip(self.blocks, shares[i].tolist(), strict=True))
                scored = Pile(**fields, solver=accounts[i]), gradients[i]
            self.entries[u.tobytes()] = Entry(u, scored, errors[i], reasons[i])


def _texts(texts: Iterable[str]) -> np.ndarray:
    return np.array(list(texts), dtype=object)
