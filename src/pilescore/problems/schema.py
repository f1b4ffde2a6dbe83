"""The tables of a problem file: which keys there are, and what they may hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..errors import describe, did_you_mean

Place: TypeAlias = tuple[str | int, ...]
"""Where something stands in a file: `("equation", 1, "nodes")`."""

Report: TypeAlias = Callable[[Place, str], None]
"""Takes down one mistake: where, and what was found and expected."""


class Table(BaseModel):
    """A table of the file; a description says what is expected of a key, in documents and in messages."""

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


class Unknown(Table):
    """A number that is to be chosen within bounds."""

    unknown: Annotated[Interval, Field(description="bounds, as [low, high]")]
    start: Annotated[float | None, Field(description="a number within the bounds")] = None

    def model_post_init(self, context: Any) -> None:
        """Refuse a start outside the bounds."""
        if self.start is not None and not self.unknown[0] <= self.start <= self.unknown[1]:
            raise ValueError

    @property
    def value(self) -> float:
        """Where to start: as given, else in the middle, of the logarithms where both bounds are positive."""
        low, high = self.unknown
        if self.start is not None:
            return self.start
        return math.sqrt(low * high) if low > 0 else 0.5 * (low + high)


CHOICE = "a fixed number, or { unknown = [low, high] }, low < high, to choose it (from a start between them, if given)"
POSITIVE = f"{CHOICE}; positive"
Choice: TypeAlias = float | Unknown
Positive: TypeAlias = Annotated[float | Unknown, AfterValidator(_positive)]
Nodes: TypeAlias = Count | dict[str, Count]
NODES = (
    "how many nodes on each axis (sobol, monte-carlo: in all): a whole number, or one for each coordinate as "
    "{ x = 13, y = 9 }; by default 30 in one dimension, 12 in two, 6 in three, 4 in more"
)
RULES = ("gauss-legendre", "fejer", "clenshaw-curtis", "chebyshev", "sobol", "monte-carlo")
Rule: TypeAlias = Literal["gauss-legendre", "fejer", "clenshaw-curtis", "chebyshev", "sobol", "monte-carlo"]
RULE = f"a quadrature rule: {', '.join(RULES)}"
NAME = "a label for tables and reports, on one line"


class Physics(Table):
    """What all that is imposed has in common."""

    name: Annotated[Label | None, Field(description=NAME)] = None
    noise: Annotated[
        float | None, Field(gt=0, description="a positive number: the standard deviation with which it holds")
    ] = None
    rho: Annotated[Positive | None, Field(description=f"a temperature of its own: {POSITIVE}")] = None
    rule: Annotated[Rule, Field(description=RULE)] = "gauss-legendre"
    nodes: Annotated[Nodes | None, Field(description=NODES)] = None


class Equation(Physics):
    """A differential equation that holds in the domain."""

    equation: Annotated[Text, Field(description='an equation, as "dt(u) + 2*dx(u) = sin(x)" or "dt(u) + u*dx(u) = 0"')]


class Constraint(Physics):
    """An integral that is known."""

    equation: Annotated[Text, Field(description='an equation, as "integral(u, x) = 1", linear in the unknown')]
    at: Annotated[
        dict[str, float | Annotated[list[float], Field(min_length=1)]],
        Field(description="values of the coordinates that are not integrated over, as { t = [0.0, 0.5] }"),
    ] = {}


class File(Table):
    """Values from a file."""

    file: Annotated[Text, Field(description="a CSV or Parquet file in the directory of the problem file or below it")]
    value: Annotated[Text, Field(description="the name of the column of values")]
    columns: Annotated[
        dict[str, Text], Field(description='columns of coordinates that are not called so, as { x = "X [m]" }')
    ] = {}


VALUE = 'a number, an expression such as "sin(pi*y)", or { file = "left.csv", value = "u" }'
FACE = 'a face, as "x = -1", a list of faces, or "all"'
Value: TypeAlias = float | Text | File
Faces: TypeAlias = Text | Annotated[list[Text], Field(min_length=1)]


class OnFace(Physics):
    """A condition on faces."""

    type: str
    face: Annotated[Faces, Field(description=FACE)]
    value: Annotated[Value, Field(description=VALUE)]


class Simple(OnFace):
    """The unknown, or its outward normal derivative."""

    type: Literal["dirichlet", "neumann"]


class Robin(OnFace):
    """`a*u + b*∂u/∂n = value`."""

    type: Literal["robin"]
    a: Annotated[float | Text, Field(description="the factor of the unknown: a number or an expression")]
    b: Annotated[float | Text, Field(description="the factor of its normal derivative: a number or an expression")]


class Cauchy(OnFace):
    """Value and normal derivative on one face."""

    type: Literal["cauchy"]
    flux: Annotated[Value, Field(description=f"the outward normal derivative: {VALUE}")]


class OperatorOnFace(OnFace):
    """Any operator on a face."""

    type: Literal["operator"]
    operator: Annotated[Text, Field(description='an expression in the unknown, as "dt(u)" or "dx(u) + u**4"')]


class PeriodicFaces(Physics):
    """Two faces on which the unknown agrees."""

    type: Literal["periodic"]
    face: Annotated[
        list[Text], Field(min_length=2, max_length=2, description='two opposite faces, as ["x = 0", "x = 1"]')
    ]
    derivatives: Annotated[
        int, Field(ge=0, le=8, description="how many derivatives agree besides the values: a whole number from 0")
    ] = 0


class Data(File):
    """Measurements."""

    measures: Annotated[
        Text | None, Field(description='what was measured, as "dx(u)" or "u**2"; by default the unknown')
    ] = None
    noise: Annotated[
        float | Text | None,
        Field(description="the standard deviation of the noise: a positive number, or the name of a column of them"),
    ] = None
    gamma: Annotated[Positive | None, Field(description=f"a temperature of its own: {POSITIVE}")] = None
    name: Annotated[Label | None, Field(description=NAME)] = None


class Kernel(Table):
    """What all kernels have in common."""

    on: Annotated[
        list[Text] | None, Field(min_length=1, description='the coordinates it depends on, as ["x"]; by default all')
    ] = None
    name: Annotated[Label | None, Field(description=NAME)] = None


BANDWIDTH = f"a length: {POSITIVE}; or numbers, one for each coordinate"
Bandwidth: TypeAlias = Positive | Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
PER_AXIS = "true for a bandwidth for each coordinate (the default), false for one for all"


class Radial(Kernel):
    """Kernels with a length in each coordinate."""

    bandwidth: Annotated[Bandwidth | None, Field(description=BANDWIDTH)] = None
    per_axis: Annotated[bool, Field(description=PER_AXIS)] = True


class RBF(Radial):
    """The Gaussian kernel."""

    type: Literal["rbf"]


class Matern(Radial):
    """Matérn kernels, with a finite number of derivatives."""

    type: Literal["matern"]
    nu: Annotated[
        float, Field(description="the smoothness, 0.5, 1.5, … 6.5: it has fewer than nu derivatives on each side")
    ]


class RationalQuadratic(Radial):
    """A mixture of Gaussian kernels of many lengths."""

    type: Literal["rational-quadratic"]
    alpha: Annotated[Positive | None, Field(description=POSITIVE)] = None


class Periodic(Kernel):
    """A kernel that is periodic in its coordinates."""

    type: Literal["periodic"]
    period: Annotated[Positive | None, Field(description=POSITIVE)] = None
    bandwidth: Annotated[Positive | None, Field(description=POSITIVE)] = None


class AnisotropicRBF(Kernel):
    """A Gaussian kernel in two coordinates, stretched along a direction."""

    type: Literal["anisotropic-rbf"]
    theta: Annotated[Choice | None, Field(description=f"an angle: {CHOICE}")] = None
    s: Annotated[Positive | None, Field(description=f"the stretch: {POSITIVE}")] = None
    bandwidth: Annotated[Positive | None, Field(description=POSITIVE)] = None


class Composite(Kernel):
    """A sum or a product of kernels."""

    type: Literal["sum", "product"]
    parts: Annotated[list[dict[str, Any]], Field(min_length=2, max_length=8, description="two kernels or more")]


class Temperatures(Table):
    """Temperatures that blocks share, and the scale."""

    gamma: Annotated[Positive | None, Field(description=f"of data without noise or gamma: {POSITIVE}")] = None
    rho: Annotated[Positive | None, Field(description=f"of physics without noise or rho: {POSITIVE}")] = None
    eta: Annotated[Positive | None, Field(description=f"the prior variance: {POSITIVE}")] = None


AUTO = (
    '"pile", "data-given-physics", or "auto": the latter where there are data, and equations have unknown parameters '
    "or the values of all equations and conditions are zero"
)


class Select(Table):
    """How to choose."""

    starts: Annotated[int, Field(ge=1, le=1000, description="descents for each kernel: a whole number from 1")] = 4
    seed: Annotated[int, Field(ge=0, le=2**31, description="a whole number from 0")] = 0
    score: Annotated[
        Literal["auto", "pile", "data-given-physics"],
        Field(description=AUTO),
    ] = "auto"


METHOD = (
    'how covariances are solved: "dense" (exact, with one matrix of N² numbers), "low_rank" (within proved bounds), '
    '"distributed" (exact, on many processes; needs the extra scale), or "auto", which chooses'
)


class Solver(Table):
    """How covariances are solved."""

    method: Annotated[Literal["auto", "dense", "low_rank", "distributed"], Field(description=METHOD)] = "auto"
    tol: Annotated[
        float | None,
        Field(gt=0, description="a positive number: how wide the interval on PILE may be; of auto and low_rank"),
    ] = None
    rank: Annotated[Count | None, Field(description="the largest rank, a whole number from 1; of low_rank")] = None


class Predict(Table):
    """What to predict, and where."""

    grid: Annotated[Nodes | None, Field(description="points on each axis: a whole number, or { x = 41, y = 21 }")] = (
        None
    )
    file: Annotated[Text | None, Field(description="a CSV or Parquet file with a column for each coordinate")] = None
    operators: Annotated[
        list[Text] | None, Field(min_length=1, max_length=50, description='operators, as ["u", "dx(u)", "u*dx(u)"]')
    ] = None


class Problem(Table):
    """The whole file; tables within it are looked at one by one."""

    title: Annotated[Label | None, Field(description="a short text on one line")] = None
    unknown: Annotated[Text, Field(description="the name of the function sought, as u")] = "u"
    domain: Annotated[
        dict[str, Any], Field(min_length=1, description="the coordinates, each with its interval, as x = [-1, 1]")
    ]
    parameters: Annotated[
        dict[str, Any], Field(description="numbers, or { unknown = [low, high] } for one to be inferred")
    ] = {}
    functions: Annotated[dict[str, Any], Field(description='expressions by name, as f = "sin(pi*x)"')] = {}
    equation: Annotated[Any, Field(description="tables [[equation]]")] = ()
    condition: Annotated[Any, Field(description="tables [[condition]]")] = ()
    data: Annotated[Any, Field(description="tables [[data]]")] = ()
    constraint: Annotated[Any, Field(description="tables [[constraint]]")] = ()
    kernel: Annotated[Any, Field(description="tables [[kernel]]; by default one of type rbf")] = ()
    temperatures: Annotated[dict[str, Any], Field(description="a table [temperatures]")] = {}
    select: Annotated[dict[str, Any], Field(description="a table [select]")] = {}
    predict: Annotated[dict[str, Any], Field(description="a table [predict]")] = {}
    solver: Annotated[dict[str, Any], Field(description="a table [solver]; by default the method is dense")] = {}


class Entry(Table):
    """Single entries of the tables of coordinates, parameters and functions."""

    interval: Annotated[
        Interval | None, Field(description="an interval [low, high] of two plain numbers, low < high")
    ] = None
    parameter: Annotated[Choice | None, Field(description=CHOICE)] = None
    expression: Annotated[float | Text | None, Field(description="an expression in quotes, or a number")] = None


Condition: TypeAlias = OnFace | PeriodicFaces
CONDITIONS: dict[str, type[Condition]] = {
    "dirichlet": Simple,
    "neumann": Simple,
    "robin": Robin,
    "cauchy": Cauchy,
    "periodic": PeriodicFaces,
    "operator": OperatorOnFace,
}
KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern": Matern,
    "rational-quadratic": RationalQuadratic,
    "periodic": Periodic,
    "anisotropic-rbf": AnisotropicRBF,
    "sum": Composite,
    "product": Composite,
}
DESCRIBED: dict[str, Sequence[type[Table]]] = {
    "": (Problem,),
    "[[equation]]": (Equation,),
    "[[condition]]": (Simple, Robin, Cauchy, OperatorOnFace, PeriodicFaces),
    "[[data]]": (Data,),
    "[[constraint]]": (Constraint,),
    "[[kernel]]": (RBF, Matern, RationalQuadratic, Periodic, AnisotropicRBF, Composite),
    "[temperatures]": (Temperatures,),
    "[select]": (Select,),
    "[predict]": (Predict,),
    "[solver]": (Solver,),
}

T = TypeVar("T", bound=Table)


def validated(kind: type[T], raw: Any, place: Place, report: Report) -> T | None:
    """Return a table, and report every mistake in it; None if nothing can be made of it without the bad keys."""
    if not isinstance(raw, Mapping):
        report(place, f"found {describe(raw)}; expected a table")
        return None
    try:
        return kind.model_validate(dict(raw))
    except ValidationError as error:
        seen: set[str] = set()
        for each in error.errors(include_url=False, include_context=False):
            key = str(each["loc"][0]) if each["loc"] else ""
            if key not in seen:
                seen.add(key)
                report((*place, key) if key in raw else place, _sentence(kind, key, raw))
    try:
        return kind.model_validate({key: value for key, value in raw.items() if key not in seen})
    except ValidationError:
        return None


INITIAL = """; an initial condition is of type dirichlet, on the face "t = 0\""""


def by_type(kinds: Mapping[str, type[T]], raw: Any, place: Place, report: Report) -> T | None:
    """Return a table whose key `type` says which keys it has."""
    if not isinstance(raw, Mapping):
        report(place, f"found {describe(raw)}; expected a table")
        return None
    name = raw.get("type")
    if not isinstance(name, str) or name not in kinds:
        found = f"found {describe(name)}" if "type" in raw else "type is missing"
        wanted = choices(name, list(kinds)) + (INITIAL if name == "initial" else "")
        report((*place, "type") if "type" in raw else place, f"{found}; expected {wanted}")
        return None
    return validated(kinds[name], raw, place, report)


def choices(found: Any, allowed: Sequence[str]) -> str:
    """Return what is allowed, and which of it was probably meant."""
    return f"one of {', '.join(allowed)}{did_you_mean(found, allowed, 0.5)}"


def expected(kind: type[Table], key: str) -> str:
    """Return what is expected of a key."""
    field = kind.model_fields[key]
    return field.description or " or ".join(repr(each) for each in _literals(field.annotation))


def _literals(annotation: Any) -> Sequence[str]:
    return tuple(getattr(annotation, "__args__", ("a value",)))


def _sentence(kind: type[Table], key: str, raw: Mapping[str, Any]) -> str:
    if key not in kind.model_fields:
        return f"there is no key {key[:60]!r} here; expected {choices(key, list(kind.model_fields))}"
    if key not in raw:
        return f"{key} is missing; expected {expected(kind, key)}"
    return f"found {describe(raw[key])}; expected {expected(kind, key)}"
