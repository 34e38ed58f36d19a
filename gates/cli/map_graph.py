"""`replay map` of an ONNX model: what each operator of the graph costs on an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gates.cli.table_csv import table_csv
from replay.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.lowering.onnx_graph.axes import AxisSizes
    from replay.specs.hardware import HardwareSpec

_LARGEST_BATCH = 2**31 - 1
_TEXT_COLUMNS = (
    ("op", 32), ("type", 20), ("kernel", 12), ("calls", 5), ("rows", 9), ("formats", 10), ("flops", 12), ("bytes", 10), ("time", 9),
    ("at least", 9), ("share", 6), ("bound by", 16), ("source", 10),
)  # fmt: skip


def is_graph(source: str) -> bool:
    """Return whether a model is an ONNX file: by its content, or by its name where the content is broken."""
    from replay.ingress.onnx_file import is_onnx

    return source.endswith(".onnx") or is_onnx(Path(source))


def parse_batches(text: str | None) -> tuple[int, ...]:
    """Return the batch sizes of ``1,8,32``, by default one.

    Raises:
        SpecError: one is no whole number from 1 on.
    """
    parts = (text or "1").split(",")
    for part in parts:
        if not _is_size(part):
            want = f"whole numbers from 1 to {_LARGEST_BATCH} with commas between them"
            raise SpecError("--batch", f"the batch size {part!r}", want, "write it like 1,8,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_axes(texts: Sequence[str]) -> dict[str, int | Literal["batch"]]:
    """Return the sizes of axes from ``name=value`` texts; the value ``batch`` makes an axis carry the batch.

    Raises:
        SpecError: one is not of this form, or an axis is given twice.
    """
    found: dict[str, int | Literal["batch"]] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not (size == "batch" or _is_size(size)) or name in found:
            got = f"the axis {name!r} twice" if name in found else f"{text!r}"
            raise SpecError("--axis", got, "each axis once, as NAME=SIZE or NAME=batch", "write it like --axis sequence=128")
        found[name] = "batch" if size == "batch" else int(size)
    return found


def render_graph(source: str, device: HardwareSpec, batches: Sequence[int], axes: AxisSizes, *, fuse: bool, form: str) -> str:
    """Return the costs of an ONNX model as text, JSON or CSV."""
    from replay.documents import pretty_json
    from replay.ingress.onnx_file import read_onnx
    from replay.lowering.onnx_graph.graph import lower_onnx
    from replay.tiling.family_pricer import FamilyPricer
    from replay.tiling.graph_costs import graph_costs, graph_totals
    from replay.tiling.library import KernelLibrary
    from replay.tiling.spatial_pricer import SpatialPricer

    graph = lower_onnx(read_onnx(Path(source)), where=source, axes=axes, fuse=fuse)
    pricer = FamilyPricer(library=KernelLibrary(device=device)) if device.spatial is None else SpatialPricer(device=device)
    costs = graph_costs(graph, pricer, batches)
    if form == "csv":
        return table_csv(costs)
    totals = graph_totals(costs)
    if form == "json":
        head = {"model": Path(source).name, "hardware": device.name, "batch_axis": graph.batch_axis}
        return pretty_json({**head, "costs": costs.to_pylist(), "totals": totals.to_pylist()})
    return _text(costs, totals, f"{Path(source).name} on {device.name}")


def _text(costs: pa.Table, totals: pa.Table, title: str) -> str:
    rows = costs.to_pylist()
    lines: list[str] = []
    for total in totals.to_pylist():
        lines += ["", f"{title}, batch {total['batch_count']}", _line(name for name, _ in _TEXT_COLUMNS)]
        lines += [_line(_cells(row)) for row in rows if row["batch_count"] == total["batch_count"]]
        lines.append(_line(_total_cells(total)))
    missing = {row["name"]: row for row in rows if row["missing_kernel"]}
    if missing:
        lines += ["", "without a kernel, costed by their bytes"]
        lines += [f"  {name} ({row['op_type']}): {row['missing_kernel']}" for name, row in missing.items()]
    return "\n".join(lines[1:]) + "\n"


def _line(cells: Any) -> str:
    return " ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, _TEXT_COLUMNS, strict=True)).rstrip()


def _cells(row: dict[str, Any]) -> list[str]:
    from replay.units import format_bytes, format_seconds, format_si

    formats = "/".join(filter(None, (row["weights_format"], row["activations_format"])))
    flops = format_si(row["flops"], "FLOP") if row["flops"] else "-"
    return [
        _shortened(row["name"]), row["op_type"], row["kernel"], str(row["calls_count"]), str(row["rows_count"]), formats or "-", flops,
        format_bytes(row["bytes"]), format_seconds(row["time_s"]), format_seconds(row["bound_s"]), f"{row['share_ratio']:.1%}",
        row["bottleneck_class"], row["source"],
    ]  # fmt: skip


def _total_cells(total: dict[str, Any]) -> list[str]:
    from replay.units import format_bytes, format_seconds, format_si

    sums = [
        format_si(total["flops"], "FLOP"),
        format_bytes(total["bytes"]),
        format_seconds(total["time_s"]),
        format_seconds(total["bound_s"]),
    ]
    return [f"total of {total['ops_count']} operators", "", "", "", "", "", *sums, "100.0%", "", ""]


def _shortened(name: str) -> str:
    """Return a name that fits its column: exporters put the path to an operator in front."""
    width = _TEXT_COLUMNS[0][1]
    return name if len(name) <= width else "..." + name[3 - width :]


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:11]) <= _LARGEST_BATCH
