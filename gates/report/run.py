"""render_run(run) -> the page of one replay: its headline figures, tails, windows and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gates.metrics import METRICS
from gates.packet.windows import window_rows
from gates.report.elements import element, page, table
from gates.report.figure import drawing
from gates.report.layers import layers_section
from gates.report.source import RUN, CellTables, columns, layer_rows, request_columns
from gates.report.tails import tails_section
from gates.report.windows import windows_section
from replay.assembly.assemble import summary
from replay.assembly.layers import ALL_LAYERS
from replay.units import format_seconds, format_si

if TYPE_CHECKING:
    from replay.assembly.run import Run


def render_run(run: Run) -> bytes:
    """Return the page of a run."""
    windows = [{name: "" if value is None else str(value) for name, value in row.items() if name != "arm"} for row in window_rows(RUN, run)]
    cell = CellTables(
        arms=(RUN,),
        requests={RUN: request_columns(run.requests)},
        windows={RUN: columns(windows)},
        layers={RUN: layer_rows(run.layers.to_pylist())},
    )
    with drawing():
        content = list(_content(run, cell))
    return page(f"{run.trace} on {run.hardware}", content)


def _content(run: Run, cell: CellTables) -> Iterator[ET.Element]:
    told = summary(run)
    yield element(
        "header", element("h1", f"{run.trace} on {run.hardware}"), element("p", f"A replay of {run.model}."), class_="verdict run"
    )
    facts = [
        ("Requests", f"{told['requests_count']:,}, of which {told['completed_count']:,} were served"),
        *((f"Rejected: {reason.replace('_', ' ')}", f"{count:,}") for reason, count in told["rejected"].items()),
        ("Span", format_seconds(told["span_s"])),
        ("Busy", f"{told['busy_ratio']:.1%} of it, in {told['steps_count']:,} steps"),
        ("Tokens per busy second", format_si(told["throughput_tokens_per_s"], "tokens/s")),
        ("MFU while busy", f"{told['mfu_ratio']:.3g} of {format_si(told['reference_flops_per_s'], 'FLOP/s')}"),
        ("Memory stall", f"{told['memory_stall_ratio'][ALL_LAYERS]:.1%} of the busy time"),
        (
            "Energy per token",
            "not known: nothing is said of the power of this accelerator"
            if told["joules_per_token"] is None
            else f"{told['joules_per_token']:.4g} J",
        ),
        ("Preemptions", f"{told['preemptions_count']:,}"),
        ("Mapping", run.mapping_digest),
        ("Trace", run.trace_digest),
    ]
    yield element("dl", *(element(tag, text) for pair in facts for tag, text in zip(("dt", "dd"), pair, strict=True)), class_="facts")
    yield _percentiles(told["percentiles"])
    for title, content in (
        ("Tails", tails_section(cell, RUN)),
        ("Over time", windows_section(cell, RUN)),
        ("Where the time goes", layers_section(cell, RUN)),
    ):
        yield element("section", element("h2", title), *content)


def _percentiles(found: Mapping[str, Mapping[str, float | None]]) -> ET.Element:
    names = list(next(iter(found.values())))
    rows = [
        [_LABELS.get(metric) or METRICS[metric].label, *("-" if one[name] is None else format_seconds(one[name] or 0.0) for name in names)]
        for metric, one in found.items()
    ]
    return table("Latencies", ("latency", *names), rows)


_LABELS = {"token_gap_s": "time between tokens"}
