"""What is read back of `summary.json`: its shape, which is checked, and findings from it."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel

from .findings import Finding
from .folders import DIGEST


class Row(BaseModel):
    """A row of the table of kernels."""

    pile: float | None
    nats: float | None
    penalised: float | None
    fit: float | None
    warnings: str | None


class Kernel(BaseModel):
    """What choosing with a kernel gave."""

    name: str
    values: dict[str, float]
    standard_errors: dict[str, float | None]
    covariance: dict[str, Any] | None
    at_bounds: dict[str, str]
    evaluations: int
    runs: list[dict[str, Any]]
    row: Row


class Block(BaseModel):
    """An observation."""

    name: str
    role: str
    observed: str
    size: int
    noise: float
    residual: float


class Outlier(BaseModel):
    """A reading that is far from its prediction."""

    block: str
    index: int
    value: float
    predicted: float
    deviations: float


class Check(BaseModel):
    """The outcome of a check of a diagnosis."""

    name: str
    status: Literal["fired", "fine", "skipped"]
    severity: Literal["failure", "warning", "note"]
    value: float | None
    threshold: float
    below: bool
    measure: str
    meaning: str
    advice: str
    details: dict[str, list[Outlier]]

    def finding(self) -> Finding:
        """Return it as `diagnose` gives it."""
        return Finding(**self.model_dump() | {"value": math.nan if self.value is None else self.value})


class Solved(BaseModel):
    """How nonlinear equations were solved."""

    status: str
    reason: str
    iterations: int
    pile: float | None
    gap: float | None
    second_order: float | None


class Summary(BaseModel):
    """What of a summary is read again."""

    title: str
    settings: dict[str, str]
    versions: dict[str, str]
    kernel: str
    pile: float
    score: str
    warnings: list[str]
    kernels: list[Kernel]
    blocks: list[Block]
    diagnosis: list[Check]
    slice: dict[str, float]
    solved: Solved | None = None

    def model_post_init(self, context: Any) -> None:
        """Refuse settings without what is needed."""
        if not {"file", f"problem{DIGEST}"} <= {*self.settings}:
            raise ValueError
