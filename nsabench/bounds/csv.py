"""CSV within bounds: its size, its rows and columns, and both together."""

from __future__ import annotations

import csv
import io

from nsabench.bounds import limits
from nsabench.bounds.content import OutOfBounds, whole


def load(data: bytes) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The columns by name, and for each row its line in the file and as many cells as columns.

    Blank rows are left out and blanks around a cell are none of it. Raises `OutOfBounds`, also when
    it is not UTF-8 or no CSV.
    """
    try:
        text = whole(data, limits.CSV).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OutOfBounds("is not UTF-8 text") from None
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    columns: list[str] | None = None
    rows: list[tuple[int, list[str]]] = []
    try:
        for cells in reader:
            if not cells:
                continue
            if max(map(len, cells)) > limits.CSV_CELL:
                raise OutOfBounds(f"has a cell of more than {limits.CSV_CELL} characters")
            if columns is None:
                columns = [cell.strip() for cell in cells]
                if len(columns) > limits.CSV_COLUMNS:
                    raise OutOfBounds(f"has more than {limits.CSV_COLUMNS} columns")
                continue
            cells = [cell.strip() for cell in cells[: len(columns)]]
            rows.append((reader.line_num, cells + [""] * (len(columns) - len(cells))))
            if len(rows) > limits.CSV_ROWS or len(rows) * len(columns) > limits.CSV_CELLS:
                raise OutOfBounds(
                    f"has more than {limits.CSV_ROWS} rows or {limits.CSV_CELLS} cells"
                )
    except csv.Error as error:
        raise OutOfBounds(f"is no CSV: {error}") from None
    return columns or [], rows
