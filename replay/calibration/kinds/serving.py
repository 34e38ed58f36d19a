"""Timings of whole servers: mean time to first token and time per output token of one configuration a row.

Columns: ``backend, backend_version, model_path, system, isl, osl, gemm_quant_mode, tp_size, pp_size, attention_dp_size, moe_ep_size,
concurrency, silicon_ttft_ms, silicon_tpot_ms`` (and others, unused). Empty or 0 sizes of parallelism are 1; an empty format is the
checkpoint's own.

Nothing is fitted: times are those of the steady state (`replay.calibration.steady_state`) on the steps of the model's lowering, with
the calibrated kernels of the row's backend, in its newest version that the device is calibrated for. Servers are taken with their own
defaults: 8192 tokens a step (vLLM's on accelerators of 70 GiB and more, SGLang's ``chunked_prefill_size``, TensorRT-LLM's
``max_num_tokens``), prompts and decoding in one step but for SGLang, 16-bit caches. Host work beyond launches is not modelled. Tables
do not say how clients arrive: they are taken to ask all at once at the start, and then one by one (`steady_state.ROUNDS`). Where all ask
once and no more, measured times to first token are longer, and times per token hold fewer of the others' prompts.

Left out and counted: what is not priced (see `served_models`), data, expert and pipeline parallelism, and systems that the catalog does
not describe; of times to first token also those that a queue decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from replay.calibration.kinds.cells import USELESS, Cells, device_name, read_cells, with_left_out
from replay.calibration.kinds.served_models import ServedModel, served_model
from replay.calibration.priced_steps import StepPricer, StepShapes
from replay.calibration.steady_state import Load, serve
from replay.calibration.whole import MeasuredWhole, Prediction
from replay.errors import SpecError, nearest
from replay.lowering.lower import lower
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec, parse_mapping
from replay.tiling.library import SOURCES, KernelLibrary
from replay.tiling.terms import Array

MIXES = {"vllm": True, "sglang": False, "trtllm": True}
"""Whether a step of a backend reads prompts and decodes (SGLang's ``--enable-mixed-chunk`` is off unless asked for)."""
BUDGET_TOKENS = 8192
UNDESCRIBED = ("gb200", "b300_sxm")
"""Systems of which the catalog has no figures."""
METRICS = {"ttft": "silicon_ttft_ms", "tpot": "silicon_tpot_ms"}
SIZES = ("tp_size", "pp_size", "attention_dp_size", "moe_ep_size", "concurrency")
NAMES, OPTIONAL_NAMES, TOKENS = ("backend", "model_path", "system"), ("backend_version", "gemm_quant_mode"), ("isl", "osl")
UNUSED = ("precision", "moe_quant_mode", "batch_size", "moe_tp_size", "measured")
CACHE_DECIDES = "the cache holds fewer sequences than the concurrency: a queue decides"
PROMPTS_DECIDE = "prompts fill more than half of the time: a queue decides"

Fields = dict[str, Any]
"""A row by columns: names, sizes, tokens, and seconds by metric (0 where the cell is useless, or empty: not measured)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One measured configuration."""

    hardware: str
    backend: str
    stack: str
    model: ServedModel
    ranks: int
    load: tuple[int, int, int]
    """Prompt tokens, output tokens, concurrency."""
    seconds: dict[str, float]
    """By metric; 0 where there is none."""

    @property
    def place(self) -> tuple[str, str, str]:
        """(hardware, stack, model and format)."""
        return self.hardware, self.stack, f"{self.model.name}-{self.model.format_name}"


@dataclass(frozen=True, slots=True)
class ServingKind:
    """The kind of these tables."""

    name: str = "serving"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of servers."""
        return {"backend", "model_path", "system", *METRICS.values()} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredWhole, ...]:
        """Return a set per device, stack, model and metric.

        Raises:
            SpecError: columns, systems, backends or sizes that cannot be, or no row that is predicted.
        """
        cells = read_cells(table, (*NAMES, *OPTIONAL_NAMES, *TOKENS, *SIZES, *METRICS.values()), UNUSED, where)
        rows, left_out = _rows(cells)
        sets = [
            _whole(chosen, metric, where)
            for place in sorted({row.place for row in rows})
            for metric in METRICS
            if (chosen := [row for row in rows if row.place == place and row.seconds[metric] > 0])
        ]
        return with_left_out(sets, [(reason, count) for reason, count in sorted(left_out.items()) if count], where)


SERVING_KIND = ServingKind()


def _rows(cells: Cells) -> tuple[list[_Row], Counter[str]]:
    """Return the rows that are predicted, and how many others there are by reason."""
    columns: dict[str, list[Any]] = {
        **{name: cells.text(name).tolist() for name in NAMES},
        **{name: [text or "" for text in cells.table[name].to_pylist()] for name in OPTIONAL_NAMES},
        **{name: cells.whole(name).tolist() for name in TOKENS},
        **{name: _sizes(cells, name) for name in SIZES},
    }
    for metric, column in METRICS.items():
        seconds, usable, useless = cells.seconds(column)
        columns[metric] = np.where(usable, seconds, 0.0).tolist()
        columns[f"useless {metric}"] = useless.tolist()
    found, left_out = list[_Row](), Counter[str]()
    for values in zip(*columns.values(), strict=True):
        fields = dict(zip(columns, values, strict=True))
        hardware = _hardware(fields, cells.where)
        model = served_model(fields["model_path"], fields["gemm_quant_mode"])
        reason = model if isinstance(model, str) else _left_out(fields, model)
        if reason or isinstance(model, str):
            left_out[str(reason)] += 1
            continue
        left_out[USELESS] += sum(fields[f"useless {metric}"] for metric in METRICS)
        found.append(
            _Row(
                hardware=hardware,
                backend=fields["backend"],
                stack="_".join(filter(None, (fields["backend"], fields["backend_version"]))),
                model=model,
                ranks=fields["tp_size"] or 1,
                load=(fields["isl"], fields["osl"], fields["concurrency"]),
                seconds={metric: fields[metric] for metric in METRICS},
            )
        )
    return found, left_out


def _hardware(fields: Fields, where: str) -> str:
    """Return the catalog name of a row's system, empty where it has no figures.

    Raises:
        SpecError: an unknown system or backend.
    """
    if fields["backend"] not in MIXES:
        got = f"unknown name {fields['backend']!r}{nearest(fields['backend'], MIXES)}"
        raise SpecError(f"{where}: backend", got, "one of " + ", ".join(MIXES), "correct the cells")
    system = fields["system"]
    return "" if system in UNDESCRIBED else device_name(system.replace("_", "-"), f"{where}: system")


def _left_out(fields: Fields, model: ServedModel) -> str:
    """Return why a row of a known model is not predicted, or nothing."""
    experts = model.layers[0].experts is not None
    reasons = {
        f"the catalog has no figures of the system {fields['system']!r}": fields["system"] in UNDESCRIBED,
        "pipeline parallelism is not priced": fields["pp_size"] > 1,
        "data parallel attention is not priced": fields["attention_dp_size"] > 1,
        "expert parallelism is not priced": experts and fields["moe_ep_size"] > 1,
        "no concurrency is stated": not fields["concurrency"],
        "one output token: nothing is decoded": fields["osl"] < 2,
        USELESS: not any(fields[metric] for metric in METRICS),
    }
    return next((reason for reason, holds in reasons.items() if holds), "") or _undivided(fields, model)


def _undivided(fields: Fields, model: ServedModel) -> str:
    try:
        lower(model.layers[0], ranks=fields["tp_size"] or 1)
    except SpecError as error:
        return error.got
    return ""


def _sizes(cells: Cells, name: str) -> list[int]:
    """Return a column of whole numbers, 0 for empty cells.

    Raises:
        SpecError: a cell is below 0 or no whole number.
    """
    values = np.nan_to_num(cells.numbers(name), nan=0.0)
    bad = np.flatnonzero((values < 0) | (np.floor(values) != values))
    if len(bad):
        raise SpecError(f"{cells.where}: {name}, row {bad[0] + 2}", f"{values[bad[0]]:g}", "a whole number, or nothing", "correct the cell")
    return [int(value) for value in values]


def _whole(rows: Sequence[_Row], metric: str, where: str) -> MeasuredWhole:
    hardware, stack, variant = rows[0].place
    prompts, outputs, concurrency = np.array([row.load for row in rows], dtype=np.float64).T
    return MeasuredWhole(
        hardware=hardware,
        stack=stack,
        variant=f"{variant}-{metric}",
        shapes={
            "prompt_tokens": prompts,
            "output_tokens": outputs,
            "concurrency": concurrency,
            "ranks": np.array([float(row.ranks) for row in rows]),
        },
        seconds=np.array([row.seconds[metric] for row in rows]),
        predict=partial(_predicted, tuple(rows), metric),
        where=where,
    )


def _predicted(rows: tuple[_Row, ...], metric: str, device: HardwareSpec) -> Prediction:
    """Return the times of rows of one place; rows of as many ranks are served alike."""
    ranks = np.array([row.ranks for row in rows])
    seconds, sources = np.zeros(len(rows)), []
    cache, prompts = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
    for count in np.unique(ranks).tolist():
        there = np.flatnonzero(ranks == count)
        loads = np.array([rows[index].load for index in there], dtype=np.float64).T
        load = Load(prompt_tokens=loads[0], output_tokens=loads[1], concurrency=loads[2])
        pricers = _pricers(rows[there[0]], int(loads[2].max()), device)
        served = serve(
            load,
            partial(_mean_price, pricers),
            budget_tokens=BUDGET_TOKENS,
            cache_tokens=pricers[0].pool.blocks_count * pricers[0].pool.block_tokens,
            mixes=MIXES[rows[0].backend],
        )
        seconds[there] = served.ttft_s if metric == "ttft" else served.tpot_s
        cache[there], prompts[there] = served.cache_decides, served.prompts_decide & ~served.cache_decides
        sources.append(served.source)
    left_out = ((CACHE_DECIDES, cache), (PROMPTS_DECIDE, prompts)) if metric == "ttft" else ()
    return Prediction(seconds=seconds, source=max(sources, key=SOURCES.index), left_out=left_out)


def _pricers(row: _Row, most_running: int, device: HardwareSpec) -> list[StepPricer]:
    """Return the pricers of a row's configuration, one for each kind of layer."""
    stack = KernelLibrary(device=device).newest(f"{row.backend}_")
    lines = [
        f'name = "{row.stack}"',
        "[formats]",
        *row.model.settings,
        "[kernels]",
        f'stack = "{stack or "auto"}"',
        "[parallelism]",
        f"tensor = {row.ranks}",
        "[batching]",
        f"max_running = {most_running}",
        f"max_batched_tokens = {BUDGET_TOKENS}",
    ]
    mapping: MappingSpec = parse_mapping("\n".join(lines), row.stack).on(device.name)
    return [StepPricer.of(model, device, mapping) for model in row.model.layers]


def _mean_price(pricers: Sequence[StepPricer], steps: StepShapes) -> Prediction:
    """Return the mean of what steps take with each kind of layer in all places: kinds are equally many, and add up."""
    found = [pricer.price(steps) for pricer in pricers]
    mean: Array = np.mean([prediction.seconds for prediction in found], axis=0)
    return Prediction(seconds=mean, source=max((prediction.source for prediction in found), key=SOURCES.index))
