"""A table as CSV text."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def table_csv(table: pa.Table) -> str:
    """Return a table with a line of column names; nulls are empty cells."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(row.values() for row in table.to_pylist())
    return stream.getvalue()
