"""Measured kernels: a user's own timings, which take precedence over the model for the shapes that they cover."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernels:
    """Timings of one kernel family's kernels on one device, of one variant under one stack."""

    family: str
    variant: str
    stack: str
    """Software that ran the kernels; empty where the table names none."""
    table: str
    """CSV with the family's shape columns and `seconds`: one text, so that many rows are compared, digested and embedded as a whole."""
    name: str
    """File that the rows are from, as people name it."""
    digest: str
    """Digest of that file."""
    rows_count: int
    set_aside_count: int
    """Rows of that file that cannot be used, or are not about this device; counted with its first kernels."""
