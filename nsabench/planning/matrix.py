"""Read matrices: YAML documents, each of which stands for a set of cases."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, ValidationError

from nsabench import limits, ops
from nsabench.errors import UsageError
from nsabench.model.case import Case, Frozen, Seed, Strict, Timing, Tolerances
from nsabench.model.plan import MatrixInfo
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import Op
from nsabench.planning.yaml_document import Document, explain, nearest, read

# Every op has these axes. Further axes of an op are the sizes of its shape.
COMMON_AXES = ("dtype", "direction", "distribution")

Scalar = int | float | str
Values = Annotated[
    list[Scalar], BeforeValidator(lambda v: v if isinstance(v, list) else [v]), Field(min_length=1)
]
Axes = dict[str, Values]


class ImplementationFilter(Strict):
    """Shell patterns on the names of implementations.

    Controls always run, on the cases with the least and the most work. The baselines that they
    wrap run there also. Candidates are not compared with a baseline that runs only for a control.
    """

    only: list[str] = Field(default=["*"])
    skip: list[str] = Field(default=[])


class Matrix(Strict):
    """A document that spans cases.

    Each entry of `include` spans a product of values, and inherits dtype, direction and
    distribution from `axes`. `axes` also spans its product, unless it only has values for entries.
    """

    op: str
    description: str = ""
    axes: Axes = Field(default={})
    include: list[Axes] = Field(default=[])
    implementations: ImplementationFilter = ImplementationFilter()
    tolerances: Tolerances = Tolerances()
    timing: Timing = Timing()
    timeout_s: PositiveFloat = 60.0
    seed: Seed = 20260101


class LoadedMatrix(Frozen):
    info: MatrixInfo
    selection: ImplementationFilter
    cases: list[Case]


def load(path: Path) -> list[LoadedMatrix]:
    return [_load(path, document) for document in read(path)]


def _load(path: Path, document: Document) -> LoadedMatrix:
    try:
        matrix = Matrix.model_validate(document.data)
    except ValidationError as error:
        raise explain(document, error, Matrix) from None
    op = ops.get(matrix.op, document.where(("op",)))
    digest = hashlib.sha256(document.content).hexdigest()
    return LoadedMatrix(
        info=MatrixInfo(name=path.stem, file=path.name, sha256=digest),
        selection=matrix.implementations,
        cases=list(_span(matrix, op, document)),
    )


def _span(matrix: Matrix, op: Op, document: Document) -> Iterator[Case]:
    valid = [*COMMON_AXES, *op.shape_model.model_fields]
    usual = (DType.FLOAT16, Direction.FORWARD, op.distributions[0])
    defaults: dict[str, Scalar] = dict(zip(COMMON_AXES, usual, strict=True))
    common = {axis: values for axis, values in matrix.axes.items() if axis in COMMON_AXES}
    blocks: list[tuple[tuple[str | int, ...], Mapping[str, list[Scalar]]]] = [
        (("include", i), {**common, **block}) for i, block in enumerate(matrix.include)
    ]
    if not matrix.include or set(matrix.axes) - set(COMMON_AXES):
        blocks.insert(0, (("axes",), matrix.axes))
    for place, axes in blocks:
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
            point = {**defaults, **dict(zip(axes, values, strict=True))}
            yield _case(point, matrix, op, document, place)


def _case(
    point: dict[str, Scalar],
    matrix: Matrix,
    op: Op,
    document: Document,
    place: tuple[str | int, ...],
) -> Case:
    sizes = {axis: value for axis, value in point.items() if axis not in COMMON_AXES}
    common: dict[str, Any] = {axis: point[axis] for axis in COMMON_AXES}
    for axis, known in (("direction", op.directions), ("distribution", op.distributions)):
        if point[axis] not in known:
            raise UsageError(
                f"{document.where((*place, axis))}: {op.name} has no {axis} {point[axis]!r}",
                nearest(str(point[axis]), list(known)),
            )
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
        raise explain(document, error, Case, place) from None
