"""A made-up cell for attribution tests: costs are a plain function of the mapping, so the true cause is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from gates.attribution.trials import Judgement
from gates.claim import Claim
from replay.assembly.run import LAYERS_SCHEMA, METRICS_SCHEMA, Run
from replay.execution.step_costs import step_seconds
from replay.execution.tables import STEPS_SCHEMA
from replay.lowering.kernel_plan import Decision
from replay.specs.mapping import MappingSpec, parse_mapping
from replay.tiling.step_table import TERMS, StepTable
from tests.step_tables import assemble_table, make_kernel, make_limits, make_pool, make_trace

MARGIN = 0.03


def mapping(**settings: object) -> MappingSpec:
    """A mapping of settings written with ``__`` for the dot: ``gemm__split_k=2``."""
    lines = [f"{name.replace('__', '.')} = {_toml(value)}" for name, value in settings.items()]
    return parse_mapping("\n".join(['name = "m"', *lines]), "test")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _layers() -> dict[str, dict[str, float]]:
    return {
        "mlp": {"compute_s": 4e-3, "memory_s": 3e-3, "launch_s": 1e-4, "sync_s": 1e-4},
        "attention": {"compute_s": 1e-3, "memory_s": 2e-3, "launch_s": 1e-4, "sync_s": 1e-4},
        "all_reduce": {"compute_s": 0.0, "memory_s": 0.0, "launch_s": 1e-4, "sync_s": 1e-3},
    }


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Per-token terms of the layers `mlp`, `attention` and `all_reduce` by phase, and what the queue adds."""

    decode: dict[str, dict[str, float]] = field(default_factory=_layers)
    prefill: dict[str, dict[str, float]] = field(default_factory=_layers)
    host_s: float = 0.0
    blocks: int = 1000
    block_tokens: int = 16
    preemptions: int = 0
    queueing: float = 1.0
    """Factor on the time to the first token beside the cost of the steps."""
    decisions: tuple[Decision, ...] = ()
    rejected: tuple[tuple[str, int], ...] = ()
    """As `Run.rejected`."""

    def grown(self, phase: str, layer: str, term: str, factor: float) -> Cost:
        """The same cost with one term of one layer multiplied."""
        layers = {name: dict(terms) for name, terms in getattr(self, phase).items()}
        layers[layer][term] *= factor
        return replace(self, **{phase: layers})


class Cell:
    """Replays, prices and judges mappings by their `Cost`; counts what it was asked."""

    def __init__(self, baseline: MappingSpec, cost: Callable[[MappingSpec], Cost], *, judgeable: bool = True) -> None:
        self.baseline, self.cost, self.judgeable = baseline, cost, judgeable
        self.seed = 0
        self.trace = make_trace([0.0, 1.0, 4.0], [10, 20, 30], [3, 4, 5])
        self.hardware = SimpleNamespace(name="chip")
        self.judged: list[str] = []
        self.runs: dict[str, Run] = {}

    def table(self, mapping: MappingSpec) -> StepTable:
        cost = self.cost(mapping)
        kernels, terms = [], {}
        limits = make_limits(max_running=1, max_batched_tokens=8)
        tokens = np.arange(9.0)
        for layer in cost.decode:
            kernels.append(make_kernel(layer, "tokens", layer))
            for term in TERMS:
                each = [phase[layer].get(term, 0.0) * tokens for phase in (cost.decode, cost.prefill)]
                terms[f"{layer}.{term}"] = np.concatenate(each)
        pool = make_pool(cost.blocks, cost.block_tokens)
        return assemble_table(kernels, terms, [0.0], limits=limits, pool=pool, host_launch_s=cost.host_s)

    def schedule(self, mapping: MappingSpec) -> SimpleNamespace:
        return SimpleNamespace(decisions=self.cost(mapping).decisions)

    def run(self, mapping: MappingSpec) -> Run:
        if mapping.digest not in self.runs:
            self.runs[mapping.digest] = self._run(mapping)
        return self.runs[mapping.digest]

    def _run(self, mapping: MappingSpec) -> Run:
        cost = self.cost(mapping)
        ttft_s = float(step_seconds(self.table(mapping), self._shapes()).duration_s.sum()) * cost.queueing
        rows = [
            {
                "request_id": f"r{index}",
                "arrival_s": 0.0,
                "prompt_tokens": 1,
                "output_tokens": 1,
                "status": "completed",
                "queue_s": cost.queueing - 1.0,
                "ttft_s": ttft_s,
                "tpot_s": None,
                "itl_s": None,
                "e2e_s": ttft_s,
                "preemptions_per_request": cost.preemptions if index == 0 else 0,
                "prefix_hit_tokens": 0,
                "replica": 0,
                "sent_s": float(index),
            }
            for index in range(3)
        ]
        return Run(
            trace="t",
            trace_digest="",
            hardware="chip",
            model="m",
            mapping_digest=mapping.digest,
            seed=0,
            requests=pa.Table.from_pylist(rows, schema=METRICS_SCHEMA),
            steps=self._shapes(),
            layers=LAYERS_SCHEMA.empty_table(),
            windows=pa.table({}),
            window_s=1.0,
            reference_flops_per_s=1.0,
            rejected=cost.rejected,
        )

    @staticmethod
    def _shapes() -> pa.Table:
        rows = []
        for index in range(40):
            row = dict.fromkeys(STEPS_SCHEMA.names, 0) | {"tokens": 1 + index % 4, "sequences": 1}
            row |= {"start_s": 0.0, "end_s": 0.0, "device_s": 0.0, "host_s": 0.0}
            rows.append(row | ({"prefill_tokens": 8, "tokens": 8} if index % 10 == 0 else {}))
        return pa.Table.from_pylist(rows, schema=STEPS_SCHEMA)

    def judge(self, mapping: MappingSpec, run: Run) -> Judgement:
        self.judged.append(mapping.digest)
        baseline, candidate = (float(arm.requests["ttft_s"][0].as_py()) for arm in (self.run(self.baseline), run))
        ratio = candidate / baseline
        outcome = "undecided" if not self.judgeable else "holds" if ratio <= 1 + MARGIN else "disproved"
        basis = {"undecided": "inconclusive", "holds": "proven_safe", "disproved": "regression"}[outcome]
        claim = make_claim(baseline=baseline, candidate=candidate, ratio=ratio, outcome=outcome)
        return Judgement(decision="release" if outcome == "holds" else "rollback", basis=basis, claims=(claim,))


def make_claim(**more: object) -> Claim:
    """A blocking claim about the p99 time to the first token."""
    fields: dict[str, object] = {
        "id": "t/chip/ttft_s.p99",
        "metric": "ttft_s",
        "layer_type": None,
        "percentile": 99.0,
        "trace": "t",
        "hardware": "chip",
        "stratum": "all",
        "direction": "lower",
        "unit": "s",
        "baseline": 1.0,
        "candidate": 1.0,
        "scale": "ratio",
        "ratio": 1.0,
        "difference": 0.0,
        "interval": None,
        "margin": MARGIN,
        "method": "m",
        "n": 3,
        "n_beyond": 0,
        "replicates": 1,
        "minimum_detectable_effect": None,
        "disproof_criterion": "d",
        "rollback_boundary": "r",
        "outcome": "holds",
        "blocking": True,
        "adjusted_p": None,
    }
    return Claim(**(fields | more))  # type: ignore[arg-type]
