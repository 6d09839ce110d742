"""A matrix: a YAML document that spans cases. This module turns it into a list of `Case`."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
)

from nsabench import limits, ops
from nsabench.errors import UsageError
from nsabench.model.case import Case, Seed, Timing, Tolerances
from nsabench.model.vocabulary import DTYPE_NAMES, L2, Direction, DType
from nsabench.ops import Op
from nsabench.planning import yaml_document as yaml_lines
from nsabench.planning.yaml_document import Document, nearest

# Axes every op has; the others are the fields of the op's shape.
COMMON_AXES = ("dtype", "direction", "distribution", "streams", "l2")

Scalar = int | float | str
Values = Annotated[
    list[Scalar], BeforeValidator(lambda v: v if isinstance(v, list) else [v]), Field(min_length=1)
]


class Selection(BaseModel):
    """Which implementations of the op run: shell patterns on their names. Controls always run, on
    the least and the most work, and with them the baselines that they wrap. No candidate is held
    to a baseline that runs along only so."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    only: list[str] = ["*"]
    skip: list[str] = []


class Matrix(BaseModel):
    """The document. `axes` spans a product of cases, and so does every entry of `include`, which
    inherits the common axes (dtype, direction, distribution, streams, l2) it does not name itself.
    A case that agrees with every key of an entry of `exclude` is left out, defaults included.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    op: str
    description: str = ""
    axes: dict[str, Values] = {}
    include: list[dict[str, Values]] = []
    exclude: list[dict[str, Values]] = []
    implementations: Selection = Selection()
    tolerances: Tolerances = Tolerances()
    timing: Timing = Timing()
    timeout_s: PositiveFloat = 60.0
    seed: Seed = 20260101


class LoadedMatrix(BaseModel):
    """A matrix with where it came from and the cases it spans."""

    model_config = ConfigDict(frozen=True)

    name: str
    file: str
    sha256: str
    selection: Selection
    cases: list[Case]


def load(path: Path) -> list[LoadedMatrix]:
    """Read, validate and span the matrices of one file: one a YAML document.

    Raises `UsageError` naming file, line, field and the nearest valid key.
    """
    return [_load(path, document) for document in yaml_lines.read(path)]


def _load(path: Path, document: Document) -> LoadedMatrix:
    matrix = yaml_lines.parse(document, Matrix)
    op = ops.to_measure(matrix.op, document.where(("op",)))
    cases = list(_span(matrix, op, document))
    if not cases:
        raise UsageError(f"{path} spans no case", "exclude less, or give `axes` or `include`.")
    return LoadedMatrix(
        name=path.stem,
        file=path.name,
        sha256=hashlib.sha256(document.content).hexdigest(),
        selection=matrix.implementations,
        cases=cases,
    )


def _span(matrix: Matrix, op: Op, document: Document) -> Iterator[Case]:
    valid = [*COMMON_AXES, *op.shape_model.model_fields]
    matrix = matrix.model_copy(
        update={
            "axes": _known_by_other_names(matrix.axes),
            "include": [_known_by_other_names(block) for block in matrix.include],
            "exclude": [_known_by_other_names(rule) for rule in matrix.exclude],
        }
    )
    blocks: list[tuple[tuple[str | int, ...], Mapping[str, list[Scalar]]]] = [
        (("include", i), {**_common(matrix.axes), **block})
        for i, block in enumerate(matrix.include)
    ]
    if not matrix.include or set(matrix.axes) - set(COMMON_AXES):
        blocks.insert(0, (("axes",), matrix.axes))
    for place, axes in [*blocks, *((("exclude", i), e) for i, e in enumerate(matrix.exclude))]:
        for axis in axes:
            if axis not in valid:
                where = document.where((*place, axis))
                raise UsageError(f"{where} is not an axis of {op.name}", nearest(axis, valid))
    spanned = sum(math.prod(map(len, axes.values())) for _, axes in blocks)
    if spanned > limits.CASES:
        raise UsageError(
            f"{document.file} spans {spanned} cases, more than {limits.CASES}",
            "give fewer values, or spread them over several matrices.",
        )
    for place, axes in blocks:
        for values in itertools.product(*axes.values()):
            point = {**_defaults(op), **dict(zip(axes, values, strict=True))}
            if any(_matches(point, rule) for rule in matrix.exclude):
                continue  # before it is looked at: what is excluded need not be possible
            case = _case(point, matrix, op, document, place)
            # Once more with the sizes that the shape fills in.
            if not any(_matches({**point, **case.shape}, rule) for rule in matrix.exclude):
                yield case


def _known_by_other_names(axes: Mapping[str, list[Scalar]]) -> Mapping[str, list[Scalar]]:
    """The same with dtypes as nsabench calls them."""
    if "dtype" not in axes:
        return axes
    return {**axes, "dtype": [DTYPE_NAMES.get(str(v), v) for v in axes["dtype"]]}


def _common(axes: Mapping[str, list[Scalar]]) -> dict[str, list[Scalar]]:
    return {axis: values for axis, values in axes.items() if axis in COMMON_AXES}


def _defaults(op: Op) -> dict[str, Scalar]:
    """What the common axes are where a matrix does not name them."""
    return {
        "dtype": DType.FLOAT16,
        "direction": Direction.FORWARD,
        "distribution": op.distributions[0],
        "streams": 1,
        "l2": L2.COLD,
    }


def _matches(point: Mapping[str, Scalar], rule: Mapping[str, list[Scalar]]) -> bool:
    return all(point.get(axis) in values for axis, values in rule.items())


def _case(
    point: dict[str, Scalar],
    matrix: Matrix,
    op: Op,
    document: Document,
    place: tuple[str | int, ...],
) -> Case:
    sizes = {axis: value for axis, value in point.items() if axis not in COMMON_AXES}
    common: dict[str, Any] = {axis: point[axis] for axis in COMMON_AXES}
    _one_of(common["direction"], op.directions, "direction", op, document, place)
    _one_of(common["distribution"], op.distributions, "distribution", op, document, place)
    try:
        shape = op.shape_model.model_validate(sizes)
        return Case(
            op=op.name,
            shape=shape.model_dump(),
            timeout_s=matrix.timeout_s,
            seed=matrix.seed,
            tolerances=matrix.tolerances,
            timing=matrix.timing,
            **common,
        )
    except ValidationError as error:
        raise yaml_lines.explain(document, error, Case, place) from None


def _one_of(
    value: Scalar,
    valid: tuple[str, ...],
    axis: str,
    op: Op,
    document: Document,
    place: tuple[str | int, ...],
) -> None:
    if value not in valid:
        raise UsageError(
            f"{document.where((*place, axis))}: {op.name} has no {axis} {value!r}",
            nearest(str(value), list(valid)),
        )
