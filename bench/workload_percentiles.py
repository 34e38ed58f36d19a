"""Percentiles of workload W1 beside those of other simulators, and every request against what physics allows.

    python bench/workload_percentiles.py

The workload is that of `bench/replay_speed.py`. Simulators disagree by several times on one trace, one model and one accelerator, so the
peers' figures are information, no target. The bounds are: TTFT is at least the prompt's FLOPs in the layers' matrices over the peak, and
E2E at least TTFT's bound plus one read of the weights from memory for each further token.
"""

from __future__ import annotations

import sys

import numpy as np
from replay_speed import CONVERSATION, HARDWARE, MAPPING, MODEL, W1_REQUESTS, common_workload

from replay.assembly.percentile import percentile
from replay.catalog.hardware import read_hardware
from replay.ingress.reader import read_trace
from replay.pipeline import run

PERCENTS = (50, 90, 95, 99)
PEERS_MS = {
    "Vidur, Sarathi": ((168, 552, 699, 1146), (26.1, 33.9, 37.9, 45.0), (5604, 12747, 13974, 17115)),
    "Vidur, vLLM V0": ((109, 363, 467, 659), (33.5, 46.6, 55.1, 74.0), (7291, 16804, 18140, 22548)),
    "Dynamo 1.2.1, A100 tables": ((223, 701, 894, 1507), (28.1, 37.9, 43.7, 49.7), (6333, 13889, 15170, 18627)),
    "Dynamo 1.6.1, polynomial": ((102, 304, 360, 527), (12.6, 18.2, 20.2, 26.4), (2921, 6746, 7536, 9206)),
    "BLIS, trained physics": ((71, 159, 179, 230), (14.2, 15.9, 16.3, 17.2), (2922, 6542, 7094, 9187)),
}
"""(TTFT, TPOT, E2E) in milliseconds at PERCENTS, as measured side by side on one machine."""
BYTES_PER_WEIGHT = 2.0  # bf16


def layer_weights() -> float:
    """Weights of the layers' matrices: attention's four and the feed-forward's three."""
    attention = MODEL.hidden_size * MODEL.head_size * (2 * MODEL.query_heads + 2 * MODEL.kv_heads)
    return float(MODEL.layers_count * (attention + 3 * MODEL.hidden_size * MODEL.intermediate_size))


def main() -> None:
    if not CONVERSATION.is_file():
        sys.exit(f"{CONVERSATION} is not there")
    trace, device = common_workload("W1", read_trace(CONVERSATION), W1_REQUESTS), read_hardware(HARDWARE)
    requests = run(trace, MODEL, device, MAPPING, seed=0).requests
    print("| W1, milliseconds | TTFT p50 / p90 / p95 / p99 | TPOT | E2E |\n| --- | --- | --- | --- |")
    ours = [requests[name].drop_null().to_numpy() * 1e3 for name in ("ttft_s", "tpot_s", "e2e_s")]
    rows = {"replay-gate": tuple(tuple(percentile(values, percent) for percent in PERCENTS) for values in ours), **PEERS_MS}
    for name, metrics in rows.items():
        cells = (" / ".join(f"{value:.0f}" if value >= 1000 else f"{value:.3g}" for value in metric) for metric in metrics)
        print(f"| {name} | {' | '.join(cells)} |")
    prompt, output = (requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    weights = layer_weights()
    ttft_bound_s = 2.0 * weights * prompt / device.matrix_flops_per_s["bf16"]
    e2e_bound_s = ttft_bound_s + (output - 1) * weights * BYTES_PER_WEIGHT / device.memory_bytes_per_s
    for name, bound_s in (("ttft_s", ttft_bound_s), ("e2e_s", e2e_bound_s)):
        ratio = requests[name].to_numpy() / bound_s
        beaten = int((ratio < 1.0).sum())
        print(f"{name}: {beaten} of {len(ratio)} requests beat the bound; the nearest takes {np.min(ratio):.2f} times as long")


if __name__ == "__main__":
    main()
