"""What each request experienced, from its replayed times."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replay.assembly.run import METRICS_SCHEMA
from replay.execution.tables import Replay


def request_metrics(replay: Replay) -> pa.Table:
    """Return METRICS_SCHEMA, one row per request in the trace's order.

    - `queue_s`: arrival to first scheduled. `ttft_s`: arrival to first token. `e2e_s`: arrival to last token. Arrival is the
      *scheduled* one where there is one, so time spent waiting for the system, or for a client to be free, counts; `sent_s` is when
      a replica got the request.
    - `tpot_s`: (e2e - ttft) / (output tokens - 1). `itl_s`: the longest gap between two consecutive tokens. Both contain
      preemptions and are null for one output token.
    - `prefix_hit_tokens`: tokens that the request never computed, for other requests had left them in the cache.
    - `kv_transfer_s`: from the first token, which a prefill replica emits, to when the decoding replica has the prompt's cache. It is
      part of the gap before the second token, and so of `tpot_s`.

    A request that never fits has null in each.
    """
    return metrics_of(replay.requests)


def metrics_of(requests: pa.Table) -> pa.Table:
    """Return METRICS_SCHEMA of replayed requests (REQUESTS_SCHEMA), as `request_metrics`."""
    arrival_s, first_token_s, finish_s = (requests[name] for name in ("arrival_s", "first_token_s", "finish_s"))
    several = pc.greater(requests["output_tokens"], 1)
    gaps = pc.if_else(several, pc.subtract(requests["output_tokens"], 1), pa.scalar(None, pa.int64()))
    columns = {
        name: requests[name] for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "status", "replica", "sent_s")
    }
    columns |= {
        "queue_s": pc.subtract(requests["first_scheduled_s"], arrival_s),
        "ttft_s": pc.subtract(first_token_s, arrival_s),
        "tpot_s": pc.divide(pc.subtract(finish_s, first_token_s), pc.cast(gaps, pa.float64())),
        "itl_s": requests["worst_itl_s"],
        "e2e_s": pc.subtract(finish_s, arrival_s),
        "preemptions_per_request": requests["preemptions"],
        **{name: requests[name] for name in ("prefix_hit_tokens", "prefill_replica", "kv_transfer_s")},
    }
    return pa.table(columns, schema=METRICS_SCHEMA)
