"""The stored form of a selection: the models behind `summary.json` and behind the parts of unfinished work."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, RootModel, model_validator

from ..diagnosis import Chart, Diagnosis, Finding, Series
from ..solvers import TIGHTEST
from ..storage import DIGEST

# JSON has no NaN: a missing number is NaN in memory and null on disk.
Number: TypeAlias = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
OptionalCount: TypeAlias = Annotated[int | None, BeforeValidator(lambda value: None if value != value else value)]


class Stored(BaseModel):
    """The base of everything stored as JSON."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class KernelScore(Stored):
    """The score of one kernel, as in the table of `compare`. The rank is known once all kernels are scored."""

    rank: OptionalCount = None
    pile: Number
    difference: Number = math.nan
    log_evidence: Number
    error: Number
    nats: Number = math.nan
    probability: Number = math.nan
    fit: Number
    complexity: Number
    size: OptionalCount
    fitted: OptionalCount
    warnings: str


class DescentSummary(Stored):
    """One descent of a search, as in `ps.search.DescentResult`."""

    start: dict[str, float]
    end: dict[str, float]
    pile: Number
    status: str
    reason: str


class HyperposteriorSummary(Stored):
    """The distribution of hyperparameters and inferred parameters, as in `ps.search.Hyperposterior`."""

    names: list[str]
    """The numbers in which the weighted models differ, searched or tied."""
    points: list[list[float]]
    """These numbers for each weighted model, heaviest first."""
    weights: list[float]
    """The weights of the models, with the sum one."""
    draws: dict[str, list[float]]
    """Equally weighted draws by name, for pictures."""
    deviations: dict[str, float]
    """Standard deviations by name."""
    quantiles: dict[str, tuple[float, float, float]]
    """The quantiles with probabilities 2.5%, 50% and 97.5% by name."""
    effective_size: Number
    evaluations: int
    log_evidence: Number
    """The log evidence, averaged over the priors."""
    log_evidence_error: Number
    warnings: list[str]


class DerivedSummary(Stored):
    """A quantity derived from parameters."""

    text: str
    """Its formula."""
    value: Number
    standard_error: Number
    quantiles: tuple[Number, Number, Number] | None = None
    """Its quantiles with probabilities 2.5%, 50% and 97.5%; None without a distribution of the parameters."""


class KernelResult(Stored):
    """The result of the search with one kernel."""

    name: str
    row: KernelScore
    values: dict[str, float] = {}
    standard_errors: dict[str, Number] = {}
    hyperposterior: HyperposteriorSummary | None = None
    """None if nothing was searched, or if it could not be computed."""
    why_known: str = ""
    """Why predictions take the chosen numbers as known although they were searched, in words."""
    degrees_of_freedom: float | None = None
    """`n − p` of the standard errors of inferred parameters; None if the noise of the data is given."""
    derived: dict[str, DerivedSummary] = {}
    at_bounds: dict[str, Literal["lower", "upper"]] = {}
    status: str = "fixed"
    reason: str = ""
    evaluations: int = 1
    descents: list[DescentSummary] = []
    score: Literal["exact", "homogeneous", "constant", "physics", "auto"] = "exact"
    """Which observations were given, as in `ps.Score.given`."""
    why: str = ""
    """What was scored, in words."""
    nodes: dict[str, list[int]] = {}
    """The number of nodes of each exact equation or condition on each axis, by its name."""
    tolerance: float = TIGHTEST
    """The tolerance of exact equations, as a fraction of the usual size of their terms, for all nodes together."""
    resolution: str = ""
    """Whether these nodes suffice, in words."""
    resolved: bool = True


class BlockSummary(Stored):
    """One block of observations, with its noise and its residual in units of the noise."""

    name: str
    role: Literal["data", "physics"]
    observed: str
    size: int
    noise: float
    """The standard deviation of the noise; of an exact block, its tolerance."""
    residual: float
    exact: bool = False


class OutlierSummary(Stored):
    """A measurement far from its prediction."""

    block: str
    index: int
    value: float
    predicted: float
    deviations: float


class SeriesSummary(Stored):
    """Points or a line of a chart, as in `ps.diagnosis.Chart`."""

    name: str
    x: list[float]
    y: list[float]
    style: Literal["dots", "line", "dashed", "line and dots"]
    colour: int


class ChartSummary(Stored):
    """The picture of a finding, as in `ps.diagnosis.Chart`."""

    title: str
    x_label: str
    y_label: str
    series: list[SeriesSummary]
    rows: list[str]
    x_log: bool

    def chart(self) -> Chart:
        """Return the picture as a finding has it."""
        series = tuple(Series(each.name, tuple(each.x), tuple(each.y), each.style, each.colour) for each in self.series)
        return Chart(self.title, self.x_label, self.y_label, series, tuple(self.rows), self.x_log)


class CheckSummary(Stored):
    """One check of a diagnosis, as in `ps.diagnosis.Finding`."""

    name: str
    status: Literal["fired", "fine", "skipped"]
    severity: Literal["failure", "warning", "note"]
    value: Number
    threshold: Number
    below: bool
    measure: str
    meaning: str
    advice: str
    details: dict[str, list[OutlierSummary]]
    p_value: float | None = None
    adjusted: float | None = None
    chart: ChartSummary | None = None
    """The picture of a finding that fired."""

    def finding(self) -> Finding:
        """Return the check as `diagnose` does; of its details there are the outliers and the picture."""
        chart = {} if self.chart is None else {"chart": self.chart.chart()}
        parts = self.model_dump(exclude={"chart"})
        return Finding(**(parts | {"details": parts["details"] | chart}))


class DiagnosisSummary(RootModel[list[CheckSummary]]):
    """All checks of a diagnosis."""

    def diagnosis(self) -> Diagnosis:
        """Return the checks as `diagnose` does."""
        return Diagnosis(tuple(check.finding() for check in self.root))


class SolutionSummary(Stored):
    """How the nonlinear equations were solved; scores are per observation."""

    status: str
    reason: str
    iterations: int
    pile: Number
    gap: Number
    second_order: Number


class SelectionSummary(Stored):
    """Everything in `summary.json`: the chosen numbers, scores, checks and versions.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... domain = { x = [0, 1] }
    ... equation = { equation = "dx(u) = 1", nodes = 5, noise = 0.1 }
    ... kernel = { type = "rbf", bandwidth = 0.5 }
    ... temperatures = { eta = 1.0 }
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "slope.toml")
    ...     _ = path.write_text(text)
    ...     found = ps.select(ps.load_problem(path), pathlib.Path(directory, "found"))
    ...     stored = pathlib.Path(directory, "found", "summary.json").read_bytes()
    >>> summary = ps.problems.SelectionSummary.model_validate_json(stored)
    >>> summary.kernel, summary.score, [kernel.name for kernel in summary.kernels]
    ('rbf', 'all observations', ['rbf'])
    >>> summary.blocks[0].observed
    '∂x u = 1'
    """

    title: str
    settings: dict[str, str]
    """The problem file, its digest, and the version; work is resumed only if they are the same."""
    versions: dict[str, str]
    kernel: str
    """The name of the chosen kernel."""
    pile: float
    score: str
    """What was scored, in words."""
    warnings: list[str]
    diagnosis: DiagnosisSummary
    kernels: list[KernelResult]
    """The results for all kernels, best first."""
    why_kernels: str = ""
    """Why these kernels were tried, in words; empty if the file names them."""
    files: list[str]
    """The files of the selection besides results, summary, report and figures."""
    figures: list[str]
    solution: SolutionSummary | None
    """None if all equations are linear."""
    losses: dict[str, Number]
    blocks: list[BlockSummary]
    slice: dict[str, float]
    """The fixed coordinates of the figures, if there are more than two coordinates."""

    @model_validator(mode="after")
    def _check_complete(self) -> Any:
        if not {"file", f"problem{DIGEST}"} <= {*self.settings}:
            raise ValueError("settings without the problem file or its digest")
        if self.kernel not in [kernel.name for kernel in self.kernels]:
            raise ValueError("the chosen kernel is not among the kernels")
        return self

    @property
    def chosen(self) -> KernelResult:
        """The result for the chosen kernel."""
        return next(kernel for kernel in self.kernels if kernel.name == self.kernel)
