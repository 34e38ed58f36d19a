"""A run directory that is written while it is replayed, for runs that are larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from replay import documents
from replay.assembly.assemble import GAP_METRIC, SUMMARY_METRICS, SUMMARY_PERCENTS, Assembly, Totals, headline
from replay.assembly.percentile import LargeSample
from replay.assembly.store import MANIFEST_SCHEMA, RUN_FILE, TABLES, WANTED, listed_files, run_document
from replay.documents import Document
from replay.execution.tables import Replay
from replay.folders import fresh_folder, parquet_bytes, parquet_options
from replay.provenance import digest_file

IN_PIECES = ("requests", "steps", "token_gaps")
"""The tables that grow with the trace."""


def write_pieces(assembly: Assembly, pieces: Iterable[Replay], folder: Path, manifest: Document) -> Document:
    """Write the run directory of a replay in pieces, as `replay.assembly.store.write_run` does that of a whole, and return its `run.json`.

    `assembly` is new. While a piece is assembled and written, in a second thread, the next one is replayed; memory holds no more than these
    two. The summary's counts and percentiles are those of the whole, sums are to rounding; steps of several replicas stand in the order of
    their starts within a piece only. Interrupted, it leaves what was there before.

    Raises:
        SpecError: the folder holds something else, or cannot be written; and what `pieces` raises.
    """
    with fresh_folder(folder, what=WANTED, listed=listed_files) as fresh:
        figures = _write_tables(assembly, pieces, fresh)
        run = assembly.outline()
        for name in TABLES:
            if name not in IN_PIECES:
                documents.write_atomic(fresh / f"{name}.parquet", parquet_bytes(getattr(run, name)))
        digests = {f"{name}.parquet": digest_file(fresh / f"{name}.parquet") for name in TABLES}
        document = run_document(run, manifest, digests, headline(run, figures.totals, figures.percentiles(fresh)))
        documents.check(document, MANIFEST_SCHEMA, str(folder / RUN_FILE))
        documents.write_atomic(fresh / RUN_FILE, documents.pretty_json(document).encode())
    return document


def _write_tables(assembly: Assembly, pieces: Iterable[Replay], fresh: Path) -> _Figures:
    """Assemble pieces and write the tables that come with them; the loops and the writer hold no lock of the interpreter."""
    figures = _Figures()
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(pq.ParquetWriter(fresh / f"{name}.parquet", TABLES[name], **parquet_options(TABLES[name])))
            for name in IN_PIECES
        }

        def write(piece: Replay) -> None:
            tables = {"requests": assembly.add(piece), "steps": piece.steps, "token_gaps": piece.token_gaps}
            figures.add(tables)
            for name, table in tables.items():
                if table.num_rows:
                    writers[name].write_table(table)

        aside = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        under_way: Future[None] | None = None
        for piece in pieces:
            if under_way is not None:
                under_way.result()
            under_way = aside.submit(write, piece)
        if under_way is not None:
            under_way.result()
    return figures


@dataclass(slots=True)
class _Figures:
    """What a summary says of the tables that are not kept."""

    totals: Totals = field(default_factory=lambda: Totals.of(TABLES["requests"].empty_table(), TABLES["steps"].empty_table()))
    samples: dict[str, LargeSample] = field(default_factory=lambda: {name: LargeSample() for name in (*SUMMARY_METRICS, GAP_METRIC)})

    def add(self, tables: dict[str, pa.Table]) -> None:
        """Count a piece."""
        self.totals += Totals.of(tables["requests"], tables["steps"])
        for name in SUMMARY_METRICS:
            self.samples[name].add(tables["requests"][name].drop_null().to_numpy())
        gaps = tables["token_gaps"]
        self.samples[GAP_METRIC].add(gaps["gap_s"].to_numpy(), gaps["tokens"].to_numpy())

    def percentiles(self, fresh: Path) -> dict[str, dict[str, float | None]]:
        """Return the percentiles of a summary, from what was counted and a second look at the files."""
        found = {}
        for name, sample in self.samples.items():
            values = sample.percentiles(SUMMARY_PERCENTS, _again(fresh, name))
            found[name] = {f"p{percent}": value for percent, value in zip(SUMMARY_PERCENTS, values, strict=True)}
        return found


def _again(fresh: Path, metric: str) -> Iterator[tuple[Any, Any]]:
    """Yield the values of a metric as they were written, and how often each occurs."""
    columns, name = (["gap_s", "tokens"], "token_gaps") if metric == GAP_METRIC else ([metric], "requests")
    with pq.ParquetFile(fresh / f"{name}.parquet") as file:
        for batch in file.iter_batches(columns=columns, batch_size=1 << 20):
            if metric == GAP_METRIC:
                yield tuple(batch[column].to_numpy() for column in columns)
            else:
                values = batch[metric].drop_null().to_numpy()
                yield values, np.ones(len(values), dtype=np.int64)
