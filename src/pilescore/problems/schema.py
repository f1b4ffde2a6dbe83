"""The tables and keys of a problem file, and the values each key accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..errors import describe, did_you_mean
from ..model import LogNormal, Normal, Prior
from .reader import Place

Report: TypeAlias = Callable[[Place, str], None]
"""Records one mistake: its place, and a sentence with what was found and what was expected."""


T = TypeVar("T", bound="TomlTable")


class TomlTable(BaseModel):
    """A table of the file. The description of a key is used both in the documentation and in error messages."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _increasing(bounds: list[float]) -> list[float]:
    if not bounds[0] < bounds[1]:
        raise ValueError
    return bounds


def _positive(value: float | Unknown) -> float | Unknown:
    if (value.unknown[0] if isinstance(value, Unknown) else value) <= 0:
        raise ValueError
    return value


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError
    return text


Text: TypeAlias = Annotated[str, Field(min_length=1)]
Label: TypeAlias = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Interval: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_increasing)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]


class PriorTable(TomlTable):
    """What is known about a number to choose: `mean ± deviation`, or within a factor of the median."""

    mean: Annotated[float | None, Field(description="a number")] = None
    deviation: Annotated[float | None, Field(gt=0, description="a positive number")] = None
    median: Annotated[float | None, Field(gt=0, description="a positive number")] = None
    factor: Annotated[float | None, Field(gt=1, description="a number above 1")] = None

    def model_post_init(self, context: Any) -> None:
        """Refuse all but the two complete pairs."""
        if self.model_fields_set not in ({"mean", "deviation"}, {"median", "factor"}):
            raise ValueError

    @property
    def prior(self) -> Prior:
        """The prior as a model takes it."""
        return LogNormal(self.median, self.factor) if self.mean is None else Normal(self.mean, self.deviation)


class Unknown(TomlTable):
    """A number to choose within bounds."""

    unknown: Annotated[Interval, Field(description="bounds, as [low, high]")]
    start: Annotated[float | None, Field(description="a number within the bounds")] = None
    prior: Annotated[PriorTable | None, Field(description="what is known about it")] = None

    def model_post_init(self, context: Any) -> None:
        """Refuse a start outside the bounds, and a log-normal prior if they are not positive."""
        if self.start is not None and not self.unknown[0] <= self.start <= self.unknown[1]:
            raise ValueError
        if self.prior is not None and self.prior.median is not None and not self.unknown[0] > 0:
            raise ValueError

    @property
    def value(self) -> float:
        """The start: as given, else the middle of the bounds (their geometric mean if both are positive)."""
        low, high = self.unknown
        if self.start is not None:
            return self.start
        return math.sqrt(low * high) if low > 0 else 0.5 * (low + high)

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds as `minimize` takes them."""
        return self.unknown[0], self.unknown[1]


def prior_of(choice: Any) -> Prior | None:
    """Return the prior of a number to choose, if the file gives one."""
    return choice.prior.prior if isinstance(choice, Unknown) and choice.prior is not None else None


def start_of(choice: Any, default: Any = None) -> Any:
    """Return a fixed number, the start of a number to choose, or the default for a key that is not given."""
    if choice is None:
        return default
    return choice.value if isinstance(choice, Unknown) else choice


OPEN = "{ unknown = [low, high] } to choose it, with low < high and optionally start = ... and prior = ..."
PRIOR = "{ mean = ..., deviation = ... }, or { median = ..., factor = ... } with factor > 1 and positive bounds"
CHOICE = f"a fixed number, or {OPEN}"
POSITIVE = f"a fixed positive number, or {OPEN}"
Choice: TypeAlias = float | Unknown
PositiveChoice: TypeAlias = Annotated[float | Unknown, AfterValidator(_positive)]
NodeCounts: TypeAlias = Count | dict[str, Count]
NODES = (
    "the number of nodes on each axis (sobol and monte-carlo: in total): a whole number, or one per coordinate as "
    "{ x = 13, y = 9 }; by default 40 in one dimension, 16 in two, 7 in three, 4 in more"
)
RuleName: TypeAlias = Literal["gauss-legendre", "fejer", "clenshaw-curtis", "chebyshev", "sobol", "monte-carlo"]
RULE = f"a quadrature rule: {', '.join(get_args(RuleName))}"
NAME = "a label for tables and reports, on one line"


class PhysicsTable(TomlTable):
    """The keys that equations, conditions and constraints share."""

    name: Annotated[Label | None, Field(description=NAME)] = None
    noise: Annotated[
        float | None, Field(gt=0, description="a positive number: the standard deviation with which it holds")
    ] = None
    rho: Annotated[PositiveChoice | None, Field(description=f"its own temperature: {POSITIVE}")] = None
    rule: Annotated[RuleName, Field(description=RULE)] = "gauss-legendre"
    nodes: Annotated[NodeCounts | None, Field(description=NODES)] = None


class EquationTable(PhysicsTable):
    """A differential equation in the domain."""

    equation: Annotated[Text, Field(description='an equation, as "dt(u) + 2*dx(u) = sin(x)" or "dt(u) + u*dx(u) = 0"')]


class ConstraintTable(PhysicsTable):
    """An integral with a known value."""

    equation: Annotated[Text, Field(description='an equation, as "integral(u, x) = 1", linear in the unknown')]
    at: Annotated[
        dict[str, float | Annotated[list[float], Field(min_length=1)]],
        Field(description="values of the coordinates that are not integrated over, as { t = [0.0, 0.5] }"),
    ] = {}


class FileTable(TomlTable):
    """Values from a file."""

    file: Annotated[Text, Field(description="a CSV or Parquet file in the directory of the problem file or below it")]
    value: Annotated[Text, Field(description="the name of the column of values")]
    columns: Annotated[
        dict[str, Text],
        Field(description='column names of coordinates, if they differ from the coordinates, as { x = "X [m]" }'),
    ] = {}


VALUE = 'a number, an expression such as "sin(pi*y)", or { file = "left.csv", value = "u" }'
FACE = 'a face, as "x = -1", a list of faces, or "all"'
BoundaryData: TypeAlias = float | Text | FileTable
FaceTexts: TypeAlias = Text | Annotated[list[Text], Field(min_length=1)]


class BoundaryTable(PhysicsTable):
    """A condition on faces of the domain."""

    type: str
    face: Annotated[FaceTexts, Field(description=FACE)]
    value: Annotated[BoundaryData, Field(description=VALUE)]


class DirichletNeumannTable(BoundaryTable):
    """The unknown (dirichlet), or its outward normal derivative (neumann)."""

    type: Literal["dirichlet", "neumann"]


class RobinTable(BoundaryTable):
    """`a*u + b*∂u/∂n = value`."""

    type: Literal["robin"]
    a: Annotated[float | Text, Field(description="the factor of the unknown: a number or an expression")]
    b: Annotated[float | Text, Field(description="the factor of its normal derivative: a number or an expression")]


class CauchyTable(BoundaryTable):
    """Value and normal derivative on the same face."""

    type: Literal["cauchy"]
    flux: Annotated[BoundaryData, Field(description=f"the outward normal derivative: {VALUE}")]


class OperatorTable(BoundaryTable):
    """Any operator on a face."""

    type: Literal["operator"]
    operator: Annotated[Text, Field(description='an expression in the unknown, as "dt(u)" or "dx(u) + u**4"')]


class PeriodicBoundaryTable(PhysicsTable):
    """Equal values of the unknown on two opposite faces."""

    type: Literal["periodic"]
    face: Annotated[
        list[Text], Field(min_length=2, max_length=2, description='two opposite faces, as ["x = 0", "x = 1"]')
    ]
    derivatives: Annotated[
        int, Field(ge=0, le=8, description="how many normal derivatives are equal too: a whole number from 0 to 8")
    ] = 0


class DataTable(FileTable):
    """Measurements."""

    measures: Annotated[
        Text | None, Field(description='the measured quantity, as "dx(u)" or "u**2"; by default the unknown')
    ] = None
    noise: Annotated[
        float | Text | None,
        Field(description="the standard deviation of the noise: a positive number, or the name of a column"),
    ] = None
    gamma: Annotated[PositiveChoice | None, Field(description=f"its own temperature: {POSITIVE}")] = None
    name: Annotated[Label | None, Field(description=NAME)] = None


class KernelTable(TomlTable):
    """The keys that all kernels share."""

    type: str
    on: Annotated[
        list[Text] | None, Field(min_length=1, description='the coordinates it depends on, as ["x"]; by default all')
    ] = None
    name: Annotated[Label | None, Field(description=NAME)] = None


BANDWIDTH = f"a length: {POSITIVE}; or a list of numbers, one per coordinate"
Bandwidth: TypeAlias = PositiveChoice | Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
PER_AXIS = "true for one bandwidth per coordinate (the default), false for one shared bandwidth"


class RadialTable(KernelTable):
    """The keys of kernels with a length in each coordinate."""

    bandwidth: Annotated[Bandwidth | None, Field(description=BANDWIDTH)] = None
    per_axis: Annotated[bool, Field(description=PER_AXIS)] = True


class RBFTable(RadialTable):
    """The Gaussian kernel."""

    type: Literal["rbf"]


class MaternTable(RadialTable):
    """Matérn kernels, with a finite number of derivatives."""

    type: Literal["matern"]
    nu: Annotated[
        float, Field(description="the smoothness, 0.5, 1.5, … 6.5: supports derivatives of order less than nu")
    ]


class RationalQuadraticTable(RadialTable):
    """A mixture of Gaussian kernels of many lengths."""

    type: Literal["rational-quadratic"]
    alpha: Annotated[PositiveChoice | None, Field(description=POSITIVE)] = None


class PeriodicKernelTable(KernelTable):
    """A kernel that is periodic in its coordinates."""

    type: Literal["periodic"]
    period: Annotated[PositiveChoice | None, Field(description=POSITIVE)] = None
    bandwidth: Annotated[PositiveChoice | None, Field(description=POSITIVE)] = None


class AnisotropicRBFTable(KernelTable):
    """A Gaussian kernel in two coordinates, stretched along a direction."""

    type: Literal["anisotropic-rbf"]
    theta: Annotated[Choice | None, Field(description=f"an angle: {CHOICE}")] = None
    s: Annotated[PositiveChoice | None, Field(description=f"the stretch: {POSITIVE}")] = None
    bandwidth: Annotated[PositiveChoice | None, Field(description=POSITIVE)] = None


class ShearedRBFTable(KernelTable):
    """A Gaussian kernel for transport, of the time and the position in a frame that moves with a velocity.

    The time is the first coordinate of `on`; by default the coordinate `t`, or else the first one.
    """

    type: Literal["sheared-rbf"]
    shear: Annotated[
        Choice | None,
        Field(description=f"the velocity: {CHOICE}; by default unknown, and chosen first by the equations alone"),
    ] = None
    bandwidth: Annotated[Bandwidth | None, Field(description=BANDWIDTH)] = None


class EvolutionTable(KernelTable):
    """A kernel for coefficients of an equation `dt(u) = …` from few snapshots: a state, and a change that grows.

    The time is the first coordinate of `on`; by default the coordinate `t`, or else the first one. The change grows
    over the whole domain.
    """

    type: Literal["evolution"]
    bandwidth: Annotated[
        Bandwidth | None,
        Field(description="of the state: a number for each coordinate except the time, or one for all; or unknown"),
    ] = None


class CompositeKernelTable(KernelTable):
    """A sum or a product of kernels."""

    type: Literal["sum", "product"]
    parts: Annotated[list[dict[str, Any]], Field(min_length=2, max_length=8, description="two kernels or more")]


class TemperaturesSection(TomlTable):
    """Shared temperatures, and the scale."""

    gamma: Annotated[PositiveChoice | None, Field(description=f"for data without noise or gamma: {POSITIVE}")] = None
    rho: Annotated[
        PositiveChoice | None,
        Field(description=f"for physics without noise or rho, which is exact otherwise: {POSITIVE}"),
    ] = None
    eta: Annotated[PositiveChoice | None, Field(description=f"the prior variance: {POSITIVE}")] = None


SCORE = (
    '"joint" (everything that is not exact), "given_physics" (the data given the physics), "given_homogeneous" (the '
    'data and the imposed values that are not zero, given those that are zero), "given_constant" (the data and the '
    'imposed values that vary, given those that do not), "profiled" (joint, at the best prior variance eta, with the '
    'ratios of noise to prior variance fixed), or "auto": "given_constant" with data and "given_homogeneous" without, '
    'unless that misses the data and "given_physics" does not'
)


class SelectSection(TomlTable):
    """How to choose."""

    starts: Annotated[
        int, Field(ge=1, le=1000, description="the number of descents for each kernel: a whole number from 1 to 1000")
    ] = 4
    seed: Annotated[int, Field(ge=0, le=2**31, description="a whole number from 0")] = 0
    score: Annotated[
        Literal["auto", "joint", "given_homogeneous", "given_constant", "given_physics", "profiled"],
        Field(description=SCORE),
    ] = "auto"


METHOD = (
    'how covariances are solved: "dense" (exact, with one matrix of N² numbers), "low_rank" (within proved bounds), '
    '"distributed" (exact, on many processes; needs the extra scale), or "auto", which chooses'
)


class SolverSection(TomlTable):
    """How covariances are solved."""

    method: Annotated[Literal["auto", "dense", "low_rank", "distributed"], Field(description=METHOD)] = "auto"
    tolerance: Annotated[
        float | None,
        Field(gt=0, description="the largest width of the interval on PILE, a positive number; for auto and low_rank"),
    ] = None
    rank: Annotated[Count | None, Field(description="the largest rank, a whole number from 1; for low_rank")] = None


class PredictSection(TomlTable):
    """What to predict, and where."""

    grid: Annotated[
        NodeCounts | None, Field(description="points on each axis: a whole number, or { x = 41, y = 21 }")
    ] = None
    file: Annotated[Text | None, Field(description="a CSV or Parquet file with a column for each coordinate")] = None
    operators: Annotated[
        list[Text] | None, Field(min_length=1, max_length=50, description='operators, as ["u", "dx(u)", "u*dx(u)"]')
    ] = None


class WholeFile(TomlTable):
    """The whole file. Each table inside it is validated separately."""

    title: Annotated[Label | None, Field(description="a short text on one line")] = None
    unknown: Annotated[Text, Field(description="the name of the unknown function, as u")] = "u"
    domain: Annotated[
        dict[str, Any], Field(min_length=1, description="the coordinates, each with its interval, as x = [-1, 1]")
    ]
    parameters: Annotated[
        dict[str, Any],
        Field(
            description="numbers, or { unknown = [low, high] } for a parameter to infer, with what is known about it "
            "as prior = { mean = 0.7, deviation = 0.1 } or prior = { median = 0.7, factor = 1.5 }"
        ),
    ] = {}
    functions: Annotated[dict[str, Any], Field(description='expressions by name, as f = "sin(pi*x)"')] = {}
    derived: Annotated[
        dict[str, Any],
        Field(description='expressions of parameters whose values and standard errors are wanted, as S = "4*k*c"'),
    ] = {}
    equation: Annotated[Any, Field(description="tables [[equation]]")] = ()
    condition: Annotated[Any, Field(description="tables [[condition]]")] = ()
    data: Annotated[Any, Field(description="tables [[data]]")] = ()
    constraint: Annotated[Any, Field(description="tables [[constraint]]")] = ()
    kernel: Annotated[
        Any, Field(description="tables [[kernel]]; by default rbf, sheared-rbf or evolution, as suits the problem")
    ] = ()
    temperatures: Annotated[dict[str, Any], Field(description="a table [temperatures]")] = {}
    select: Annotated[dict[str, Any], Field(description="a table [select]")] = {}
    predict: Annotated[dict[str, Any], Field(description="a table [predict]")] = {}
    solver: Annotated[dict[str, Any], Field(description="a table [solver]; without it, the solver is dense")] = {}


class SingleEntry(TomlTable):
    """One entry of the tables [domain], [parameters], [functions] and [derived], whose keys the user chooses."""

    interval: Annotated[
        Interval | None, Field(description="an interval [low, high] of two plain numbers, low < high")
    ] = None
    parameter: Annotated[Choice | None, Field(description=CHOICE)] = None
    expression: Annotated[float | Text | None, Field(description="an expression in quotes, or a number")] = None


def _by_type(*kinds: type[T]) -> dict[str, type[T]]:
    """Return tables by the values that their key `type` can have."""
    return {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}


ConditionTable: TypeAlias = BoundaryTable | PeriodicBoundaryTable
CONDITIONS = _by_type(DirichletNeumannTable, RobinTable, CauchyTable, PeriodicBoundaryTable, OperatorTable)
KERNELS = _by_type(
    RBFTable,
    MaternTable,
    RationalQuadraticTable,
    PeriodicKernelTable,
    AnisotropicRBFTable,
    ShearedRBFTable,
    EvolutionTable,
    CompositeKernelTable,
)
DOCUMENTED: dict[str, Sequence[type[TomlTable]]] = {
    "": (WholeFile,),
    "[[equation]]": (EquationTable,),
    "[[condition]]": (DirichletNeumannTable, RobinTable, CauchyTable, OperatorTable, PeriodicBoundaryTable),
    "[[data]]": (DataTable,),
    "[[constraint]]": (ConstraintTable,),
    "[[kernel]]": tuple(dict.fromkeys(KERNELS.values())),
    "[temperatures]": (TemperaturesSection,),
    "[select]": (SelectSection,),
    "[predict]": (PredictSection,),
    "[solver]": (SolverSection,),
}
"""The classes behind each table of the documentation."""

RENAMED_KEYS = {"tol": "tolerance"}
RENAMED_VALUES = {("score", "pile"): "joint", ("score", "data-given-physics"): "given_physics"}
"""Words of earlier versions, with the words that replaced them."""

INITIAL_CONDITION = '; an initial condition has type dirichlet and face "t = 0"'


def validated(kind: type[T] | Mapping[str, type[T]], raw: Any, place: Place, report: Report) -> T | None:
    """Return a table, and report every mistake in it; None if it is unusable even without its bad keys.

    With several kinds, the key `type` of the table says which of them it is.
    """
    if not isinstance(raw, Mapping):
        report(place, f"found {describe(raw)}; expected a table")
        return None
    if isinstance(kind, Mapping):
        name = raw.get("type")
        if not isinstance(name, str) or name not in kind:
            found = f"found {describe(name)}" if "type" in raw else "type is missing"
            allowed = _choices(name, list(kind)) + (INITIAL_CONDITION if name == "initial" else "")
            report((*place, "type") if "type" in raw else place, f"{found}; expected {allowed}")
            return None
        kind = kind[name]
    try:
        return kind.model_validate(dict(raw))
    except ValidationError as error:
        bad_keys: set[str] = set()
        for detail in error.errors(include_url=False, include_context=False):
            key = str(detail["loc"][0]) if detail["loc"] else ""
            if key not in bad_keys:  # one message per key, although pydantic may report several
                bad_keys.add(key)
                report((*place, key) if key in raw else place, _message(kind, key, raw))
    try:
        return kind.model_validate({key: value for key, value in raw.items() if key not in bad_keys})
    except ValidationError:
        return None


def expected(kind: type[TomlTable], key: str) -> str:
    """Return the description of what a key accepts."""
    field = kind.model_fields[key]
    literals: Sequence[Any] = getattr(field.annotation, "__args__", ("a value",))
    return field.description or " or ".join(repr(literal) for literal in literals)


def _choices(found: Any, allowed: Sequence[str]) -> str:
    return f"one of {', '.join(allowed)}{did_you_mean(found, allowed, 0.5)}"


def _message(kind: type[TomlTable], key: str, raw: Mapping[str, Any]) -> str:
    """Return the error message for one bad key of a table."""
    if key not in kind.model_fields:
        if RENAMED_KEYS.get(key) in kind.model_fields:
            return f"the key {key!r} is now called {RENAMED_KEYS[key]!r}"
        return f"there is no key {key[:60]!r} here; expected {_choices(key, list(kind.model_fields))}"
    if key not in raw:
        return f"{key} is missing; expected {expected(kind, key)}"
    value = raw[key]
    if isinstance(value, str) and (key, value) in RENAMED_VALUES:
        return f"found {value!r}, which is now called {RENAMED_VALUES[key, value]!r}"
    if _has_bad_prior(value):
        return f"found prior = {describe(value['prior'])}; expected {PRIOR}"
    return f"found {describe(value)}; expected {expected(kind, key)}"


def _has_bad_prior(value: Any) -> bool:
    """Return whether a number to choose has a mistake in its prior alone."""
    if not isinstance(value, Mapping) or "prior" not in value:
        return False
    try:
        Unknown.model_validate({key: part for key, part in value.items() if key != "prior"})
    except ValidationError:
        return False
    return True
