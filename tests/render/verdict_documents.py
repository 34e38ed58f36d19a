"""Verdict documents for tests of what is printed, made by the gate's own records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gates.attribution.cause import CellCause
from gates.claim import Claim, Interval
from gates.finding import Finding
from gates.plan import METHOD, CellSpec, Plan, make_plan
from gates.policy import default_policy
from gates.statement import InputRecord, to_document
from gates.verdict import cell_verdict, combine

CELL = CellSpec(
    trace="chat", trace_digest="sha256:" + "1" * 64, hardware="h100-sxm", model="llama-3.1-8b", layer_types=("attention", "mlp")
)
PATCH = "--- a/mapping.toml\n+++ b/mapping.toml\n@@ -2,2 +2,2 @@\n [gemm]\n-tile = [256, 128, 64]  # new\n+tile = [128, 128, 64]  # new\n"


def plan() -> Plan:
    return make_plan(default_policy(), [CELL], 7)


def claims(**changes: dict[str, Any]) -> tuple[Claim, ...]:
    """Every planned claim of the cell, holding without any change, except where `changes` (by key, ``__`` for the dot) say more."""
    rows = []
    for planned in plan().cells[0].claims:
        spec, definition = planned.spec, planned.spec.definition
        ratio = definition.scale == "ratio"
        no_change = 1.0 if ratio else 0.0
        claim = Claim(
            id=planned.id,
            metric=spec.metric,
            layer_type=spec.layer_type,
            percentile=spec.percentile,
            trace=CELL.trace,
            hardware=CELL.hardware,
            stratum=spec.stratum,
            direction=definition.direction,
            unit=definition.unit,
            baseline=0.25,
            candidate=0.25,
            scale=definition.scale,
            ratio=1.0,
            difference=0.0,
            interval=Interval(lower=no_change, upper=no_change, confidence=0.9),
            margin=spec.margin,
            method=METHOD,
            n=1000,
            n_beyond=None,
            replicates=1000,
            minimum_detectable_effect=0.0,
            disproof_criterion=planned.disproof_criterion,
            rollback_boundary=planned.rollback_boundary,
            outcome="holds",
            blocking=spec.blocking,
            adjusted_p=1.0 if spec.blocking else None,
        )
        rows.append(replace(claim, **changes.get(spec.key.replace(".", "__"), {})))
    return tuple(rows)


WORSE = {
    "candidate": 0.31,
    "ratio": 1.24,
    "difference": 0.06,
    "interval": Interval(lower=1.18, upper=1.3, confidence=0.9),
    "outcome": "disproved",
    "adjusted_p": 0.007,
}
BETTER = {"candidate": 0.2, "ratio": 0.8, "difference": -0.05, "interval": Interval(lower=0.75, upper=0.85, confidence=0.9)}
UNSURE = {
    "candidate": 0.26,
    "ratio": 1.04,
    "difference": 0.01,
    "interval": Interval(lower=0.98, upper=1.1, confidence=0.9),
    "outcome": "undecided",
    "reason_code": "margin_not_shown",
    "reason": "the interval 0.98 to 1.1 includes no change and reaches beyond the margin's end 1.03",
    "n_needed": 4000,
    "warnings": ("only 34 samples lie beyond p99; 100 make it steady",),
}
KNOB = {
    "knob": "gemm.tile",
    "baseline": [128, 128, 64],
    "candidate": [256, 128, 64],
    "requested": [256, 128, 64],
    "effective": [256, 128, 64],
    "fallback_reason": None,
    "owner": "kernels",
    "revert_cost": "hot",
    "line": 3,
}
CAUSE = CellCause(
    first_failing_stage="tiling",
    bottleneck_class="compute",
    knobs=(KNOB,),
    attribution=(
        {
            "knob": "gemm.tile",
            "metric": "ttft_s.p99",
            "effect": 0.24,
            "share": 1.0,
            "effect_alone": 0.24,
            "interval": None,
            "method": "exact replay of the recorded trace; no interval",
        },
    ),
    mitigation={
        "revert": ["gemm.tile"],
        "patch": PATCH,
        "verified": True,
        "decision_after": "release",
        "owner": "kernels",
        "revert_cost": "hot",
        "rollback_boundary": "the baseline's values are known good for trace chat on h100-sxm: 1000 requests",
    },
    owners=(
        {"finding": "gemm.tile", "owner": "kernels", "contact": "kernels@example.org", "source": "owners.toml:1"},
        {"finding": "tiling", "owner": "kernels", "contact": "kernels@example.org", "source": "owners.toml:5"},
    ),
    reasons=(
        {"code": "first_failing_stage", "message": "tiling: the baseline's recorded steps (all steps) take 31.0% longer (2 s -> 2.62 s)"},
        {"code": "bottleneck", "message": "compute of mlp in decode steps grows from 1 s to 1.6 s on the baseline's steps"},
    ),
)
SUSTAINED = {
    "trace": "chat",
    "hardware": "h100-sxm",
    "reference_flops_per_s": {"baseline": 9.89e14, "candidate": 9.89e14},
    "sustained_flops_per_s": {"baseline": 4e14, "candidate": 3.2e14},
    "mfu_ratio": {"baseline": 0.404, "candidate": 0.324},
    "wall_clock_mfu_ratio": {"baseline": 0.2, "candidate": 0.2},
    "memory_stall_ratio": {"attention": {"baseline": 0.41, "candidate": 0.41}, "norm": {"baseline": 0.0, "candidate": 0.0}},
}
SYNTHETIC = Finding(
    code="synthetic_trace",
    message="every claim here is about the synthetic trace chat, not about production",
    effect="informs",
    stage="ingress",
)


def document(
    of_claims: tuple[Claim, ...],
    *,
    cause: CellCause | None = None,
    findings: tuple[Finding, ...] = (),
    name: str = "mapping.toml",
    cells: int = 1,
) -> dict[str, Any]:
    """The statement of a gate with one cell, or the same cell on several accelerators."""
    specs = [replace(CELL, hardware=CELL.hardware if index == 0 else f"chip-{index}") for index in range(cells)]
    verdicts = [
        cell_verdict(
            spec,
            tuple(replace(claim, hardware=spec.hardware, id=claim.id.replace(CELL.hardware, spec.hardware)) for claim in of_claims),
            findings,
            cause=cause,
            sustained=SUSTAINED,
        )
        for spec in specs
    ]
    inputs = [
        InputRecord(role="candidate_mapping", name=name, digest="sha256:" + "2" * 64),
        InputRecord(role="trace", name="chat.parquet", digest=CELL.trace_digest, rows=1000, dropped=0),
    ]
    evidence = {"path": "evidence", "digest": "sha256:" + "3" * 64, "reproduce": None}
    return to_document(combine(verdicts), plan=plan(), inputs=inputs, tool_version="0.1.0", evidence=evidence)


def regression(**more: Any) -> dict[str, Any]:
    return document(
        claims(ttft_s__p99=WORSE, ttft_s__p95=WORSE | {"ratio": 1.1}, tpot_s__p99=BETTER), cause=CAUSE, findings=(SYNTHETIC,), **more
    )


def release(**more: Any) -> dict[str, Any]:
    close = {"candidate": 0.255, "ratio": 1.02, "difference": 0.005, "interval": Interval(lower=1.01, upper=1.029, confidence=0.9)}
    return document(claims(e2e_s__p99=close, tpot_s__p99=BETTER), cause=CellCause(knobs=(KNOB,)), **more)


def inconclusive(**more: Any) -> dict[str, Any]:
    return document(claims(ttft_s__p99=UNSURE, e2e_s__p99=UNSURE | {"ratio": 1.035}), **more)


def invalid(**more: Any) -> dict[str, Any]:
    finding = Finding(
        code="trace_differs",
        message="the arms replayed different traces: a and b",
        effect="invalidates",
        stage="ingress",
        bottleneck_class="measurement",
    )
    return document(claims(ttft_s__p99=WORSE), findings=(finding,), **more)
