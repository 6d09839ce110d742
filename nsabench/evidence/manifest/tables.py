"""Check that the tables and the thresholds of a run follow from its plan and log.

All are derived again. If the bytes differ, which may be due to the version of pyarrow, the values
are compared. docs/reference/manifest.md lists what else depends on versions.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nsabench import limits, reading
from nsabench.checks.controls import list_unproven
from nsabench.checks.finding import Group
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.files import readable
from nsabench.evidence.manifest.logs import Logged
from nsabench.evidence.manifest.statement import Predicate, require_same
from nsabench.model.plan import Plan
from nsabench.model.version import __version__
from nsabench.model.vocabulary import Catch, Direction, Mode
from nsabench.planning import yaml_document
from nsabench.running.folder import RunFolder
from nsabench.verdicts import break_even, threshold, thresholds_yaml
from nsabench.verdicts.results import assemble
from nsabench.verdicts.tables import (
    BATCH,
    COMPARISONS,
    RECORDS,
    SAMPLES,
    TABLES,
    check_table,
    misfit,
    write_tables,
)

COLUMNS = {"records": RECORDS, "comparisons": COMPARISONS, "samples": SAMPLES}
OUTCOME = ["op", "direction", "mode", "caught_by", "caught"]


def derive_tables(folder: Path, plan: Plan, into: Path) -> None:
    """Write the tables, and the thresholds if the run has some, that follow from its logs."""
    run = RunFolder(folder)
    try:
        results = assemble(plan.run_id, run.parts())
        write_tables(results, plan.run_id, into)
        if run.thresholds.exists():  # `nsabench run` writes none
            decisions = threshold.decide_run(results.records, plan)
            payments = break_even.decide(results.records)
            thresholds_yaml.write(decisions, RunFolder(into).thresholds, payments)
    except UsageError as error:
        raise VerificationFailed(f"they cannot be derived: {error}", error.remedy) from None
    except (ArithmeticError, AssertionError, LookupError, ValueError) as error:
        # Even a signed log can contain numbers that no device measures.
        raise VerificationFailed(f"they do not follow from the log: {error!r}") from None


def check_tables(folder: Path, derived: Path, plan: Plan, logged: Logged) -> str:
    """Compare tables and thresholds with `derived`. Return a sentence on what was compared."""
    other = [
        name
        for name in (f"{table}.parquet" for table in TABLES)
        if files.sha256(folder, name) != files.sha256(derived, name)
    ]
    made = f"nsabench {plan.nsabench} and numpy {logged.described.software.numpy}"
    is_same_version = plan.nsabench == __version__
    try:
        for name in other:
            _check_values(folder / name, derived / name, is_same_version)
        if RunFolder(derived).thresholds.exists():
            _check_thresholds(folder, derived, is_same_version)
    except VerificationFailed as error:
        error.remedy = error.remedy or (
            f"do not rely on it. The run was made with {made}, and this is nsabench {__version__}. "
            "If the versions differ, verify the run with those that made it."
        )
        raise
    if not other:
        return "they follow from the log, byte for byte"
    writers = {pq.read_metadata(path / other[0]).created_by for path in (folder, derived)}
    return (
        f"every value follows from the log; the bytes of {', '.join(other)} are not compared "
        f"({' and '.join(sorted(writers))})"
    )


def _check_values(path: Path, derived: Path, is_same_version: bool) -> None:
    """Compare two tables. If the versions of nsabench differ, ignore columns that only one has."""
    rows, expected = count_rows(path), pq.read_metadata(derived).num_rows
    if rows != expected:
        raise VerificationFailed(f"{path.name} has {rows} rows, and {expected} follow from the log")
    with readable(path.name):
        names, derived_names = pq.read_schema(path).names, pq.read_schema(derived).names
        wrong = misfit(pq.read_schema(path), COLUMNS[path.stem], ("run_id",))
        if wrong:
            raise VerificationFailed(f"{path.name} {wrong}")
        if names != derived_names and is_same_version:
            other = ", ".join(sorted(set(names) ^ set(derived_names))) or "in another order"
            raise VerificationFailed(f"{path.name} has other columns: {other[:200]}")
        for name in derived_names:
            if name in names:
                _check_column(path, derived, name)
        _check_statistics(path, derived)


def _check_column(path: Path, derived: Path, name: str) -> None:
    found, expected = (pq.read_table(p, columns=[name])[name] for p in (path, derived))
    for start in range(0, len(expected), BATCH):
        pair = found.slice(start, BATCH), expected.slice(start, BATCH)
        if pair[0].equals(pair[1]):
            continue
        for row, (value, follows) in enumerate(zip(*(p.to_pylist() for p in pair), strict=True)):
            is_nan = value != value and follows != follows
            if value != follows and not is_nan:
                keys = pq.read_table(derived, columns=["case_id", "implementation"])
                [key] = keys.slice(start + row, 1).to_pylist()
                raise VerificationFailed(
                    f"{path.name}: {name} of {key['implementation']} on {key['case_id']} is "
                    f"{value!r}, and {follows!r} follows from the log"
                )


def _check_statistics(path: Path, derived: Path) -> None:
    """Compare the stored statistics of columns, by which readers such as DuckDB skip rows."""
    found, expected = pq.read_metadata(path), pq.read_metadata(derived)
    groups = [[m.row_group(i) for i in range(m.num_row_groups)] for m in (found, expected)]
    if [group.num_rows for group in groups[0]] != [group.num_rows for group in groups[1]]:
        raise VerificationFailed(f"{path.name} has other groups of rows than nsabench writes")
    for group, derived_group in zip(*groups, strict=True):
        bounds, derived_bounds = _bounds(group), _bounds(derived_group)
        for key in bounds.keys() & derived_bounds.keys():
            if bounds[key] != derived_bounds[key]:
                raise VerificationFailed(f"{path.name}: the stored {key[1]} of {key[0]} is wrong")


def _bounds(group: Any) -> dict[tuple[str, str], Any]:
    bounds = {}
    for column in map(group.column, range(group.num_columns)):
        statistics = column.statistics
        if statistics is not None and statistics.has_null_count:
            bounds[column.path_in_schema, "number of nulls"] = statistics.null_count
        if statistics is not None and statistics.has_min_max:
            bounds[column.path_in_schema, "least value"] = statistics.min
            bounds[column.path_in_schema, "greatest value"] = statistics.max
    return bounds


def _check_thresholds(folder: Path, derived: Path, is_same_version: bool) -> None:
    paths = [RunFolder(path).thresholds for path in (folder, derived)]
    with readable(paths[0].name):
        found, expected = (reading.read(p, limits.FILE) for p in paths)
        if found == expected:
            return
        try:
            documents = [yaml_document.read(path) for path in paths]
        except UsageError as error:
            raise VerificationFailed(str(error)) from None
        (held, *others), (follows, *_) = documents
        if others:
            raise VerificationFailed(f"{paths[0].name} contains several documents")
        _check_data(held.data, follows.data, (), is_same_version)


def _check_data(found: Any, expected: Any, place: tuple[str | int, ...], is_same: bool) -> None:
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = expected.keys() | found.keys() if is_same else expected.keys() & found.keys()
        for key in sorted(keys):
            _check_data(found.get(key), expected.get(key), (*place, key), is_same)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for i, pair in enumerate(zip(found, expected, strict=True)):
            _check_data(*pair, (*place, i), is_same)
    elif found != expected:
        raise VerificationFailed(
            f"{thresholds_yaml.THRESHOLDS}: {yaml_document.dotted(place)} is {str(found)[:200]}, "
            f"and {str(expected)[:200]} follows from the log"
        )


def check_summary(folder: Path, predicate: Predicate) -> None:
    for name, value in summarize_tables(folder).items():
        require_same(f"what was signed: {name}", getattr(predicate, name), value)


def summarize_tables(folder: Path) -> dict[str, int | bool]:
    """Return the fields of a `Predicate` about tables: their rows, and `controls_caught`."""
    rows = {table: count_rows(folder / f"{table}.parquet") for table in TABLES}
    path = folder / "records.parquet"
    with readable(path.name):
        found = pq.read_table(path, columns=OUTCOME).to_pylist()
        return {**rows, "controls_caught": are_controls_caught(found)}


def are_controls_caught(records: Iterable[Mapping[str, Any]]) -> bool:
    """Return the `controls_caught` of a `Predicate`. records: rows with the columns `OUTCOME`."""
    outcomes = []
    for row in records:
        if row["caught"]:
            group = Group(row["op"], Direction(row["direction"]), Mode(row["mode"]))
            outcomes.append((group, row["caught_by"], Catch(row["caught"])))
    missed = any(caught is Catch.MISSED for _, _, caught in outcomes)
    return not missed and not list_unproven(outcomes)


def count_rows(path: Path) -> int:
    with readable(path.name):
        return check_table(path, getattr(limits, path.stem.upper()))
