"""Measured kernels as bundles and run directories embed them, held to what a replay records."""

from __future__ import annotations

from dataclasses import fields

from replay.documents import Document
from replay.errors import SpecError
from replay.specs.measured import MeasuredKernels


def recorded_measurements(entries: object, where: str) -> list[Document]:
    """Return recorded measured kernels.

    Raises:
        SpecError: they are not what a replay records, or hold a row that is none.
    """
    names = {field.name for field in fields(MeasuredKernels)}
    counts = {name for name in names if name.endswith("_count")}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and set(entry) == names for entry in entries):
        raise _wrong(where, "no list of measured kernels with " + ", ".join(sorted(names)))
    for entry in entries:
        odd = [name for name in sorted(names) if not isinstance(entry[name], int if name in counts else str)]
        if odd:
            raise _wrong(where, f"{odd[0]} is {entry[odd[0]]!r}"[:80])
        _check_rows(entry, where)
    return entries


def _check_rows(entry: Document, where: str) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pc

    try:
        table = pc.read_csv(pa.BufferReader(entry["table"].encode()), read_options=pc.ReadOptions(use_threads=False))
        values = np.array([column.cast(pa.float64()).to_numpy() for column in table.columns])
    except pa.ArrowInvalid as error:
        raise _wrong(where, f"rows of {entry['name']} that are no table of numbers"[:160]) from error
    if "seconds" not in table.column_names or table.num_rows != entry["rows_count"] or not (np.isfinite(values) & (values >= 0)).all():
        raise _wrong(where, f"rows of {entry['name']} that are not all finite, or not as many as it says"[:160])
    if not (table["seconds"].to_numpy() > 0).all():
        raise _wrong(where, f"a time of {entry['name']} that is not above zero"[:160])


def _wrong(where: str, got: str) -> SpecError:
    return SpecError(f"{where}: measured", got, "the measured kernels that a replay records", "make it again")
