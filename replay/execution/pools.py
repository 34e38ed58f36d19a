"""The replay of two pools of replicas: one computes prompts, the other goes on from them.

What the first pool does depends in no way on the second, so the two are replayed one after the other, each as
`replay.execution.fleet` says, under one step table: same accelerators, same mapping. Its scopes by phase tell the pools apart.

- A *prefill replica* serves each request as one of one output token, which it emits: TTFT ends there, as with DistServe (OSDI 2024),
  Splitwise (ISCA 2024), SGLang and TensorRT-LLM. (vLLM's decoding server computes the last prompt token again, and a router
  may take the first token from there.) A request of one output token ends there.
- Then the blocks of its prompt, all of them, are sent to the replica that `routing` chooses at that moment, each rank's part over a link
  of its own, in blocks x `block_send_s` + `send_latency_s`. That is after the prompt is done (DistServe; vLLM's NIXL connector), not
  layer by layer while it is computed (Splitwise for long prompts, Mooncake). Each replica has one link for what it sends or receives.
  A transfer takes both links whole, from when all that was asked of either before is done, in the order in which prompts end.
- With the last block the request arrives at its decoding replica and waits to be admitted there, as the mapping's rules have it, with the
  blocks of its prompt; the first step computes its second token. Preempted, it is computed again (or swapped) there.
- Between its first token and that admission a prompt takes room in neither pool. Servers keep it in one of them, the sender as long as
  the transfer lasts (vLLM, DistServe): where that is long against a prefill and the pool is short, the prefill pool here has more room.
- Prefixes are found in the prefill pool only: a decoding replica receives every prompt whole, and computes again whole ones.
- Replicas are numbered with the decoding ones first; of `steps`, those of both pools are there. `first_scheduled_s`, `sent_s` and
  `prefix_hit_tokens` of a request are the prefill pool's, its preemptions those of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import SpecError
from replay.execution.admission import FITS, rejections
from replay.execution.fleet import fleet_arrays, serve
from replay.execution.fleet_arrays import FleetArrays
from replay.execution.replica import check_arrivals
from replay.execution.tables import REQUESTS_SCHEMA, TOKEN_GAPS_SCHEMA, Replay
from replay.ingress.trace import Trace
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES, StepTable


def replay_pools(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> Replay:
    """Return what would have happened on `prefill_replicas_count` replicas that compute prompts and `replicas_count` that go on.

    Raises:
        SpecError: clients or sessions wait for answers; see also `replay.execution.engine.replay`.
        TraceError, InvariantError: see there.
    """
    check_arrivals(trace)
    check_open_loop(trace, table)
    prefill_table, decode_table = pool_tables(table)
    fits = rejections(trace.requests, table) == FITS
    routing = ROUTING_NAMES.index(table.limits.routing)
    prompts = _changed(trace, output_tokens=np.ones(len(fits), dtype=np.int64))
    first = serve(prompts, prefill_table, fits, fleet_arrays(prompts, fits, Load(), routing), kernel_factors)
    goes_on = fits & (trace.requests["output_tokens"].to_numpy() > 1)
    answers, arrays = _handed_over(trace, table, first, goes_on)
    later = serve(answers, decode_table, goes_on, arrays, kernel_factors)
    return _joined(trace, table, first, later)


def check_open_loop(trace: Trace, table: StepTable) -> None:
    """Raise SpecError where what ends decides what is sent: the prefill pool would depend on the other one."""
    if trace.provenance.load is not None:
        raise SpecError(
            "fleet.prefill_replicas",
            f"{table.limits.prefill_replicas_count} for requests that clients or sessions send",
            "requests at their own arrivals",
            "set it to 0, or replay the trace without the load of `replay trace load`",
        )


def pool_tables(table: StepTable) -> tuple[StepTable, StepTable]:
    """Return the table of each pool: that of the prefill replicas, and that of those which go on."""
    prefill = replace(table.limits, replicas_count=table.limits.prefill_replicas_count, prefill_replicas_count=0)
    decode = replace(table.limits, prefill_replicas_count=0, prefix_cache=False)
    return replace(table, limits=prefill), replace(table, limits=decode)


def _handed_over(trace: Trace, table: StepTable, first: Replay, goes_on: npt.NDArray[np.bool_]) -> tuple[Trace, FleetArrays]:
    """Return the requests as the second pool gets them: of prompts that are one token longer, all but that token is computed."""
    prompt, output = (trace.requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    prompt_end_s = first.requests["first_token_s"].fill_null(0.0).to_numpy()
    answers = _changed(trace, arrival_s=prompt_end_s, prompt_tokens=prompt + 1, output_tokens=np.maximum(output - 1, 1))
    arrays = fleet_arrays(answers, goes_on, Load(), ROUTING_NAMES.index(table.limits.routing))
    arrays.pending["received_tokens"] = prompt
    arrays.pending["sender"] = first.requests["replica"].fill_null(0).to_numpy()
    arrays.pending["send_s"] = -(-prompt // table.pool.block_tokens) * table.pool.block_send_s + table.pool.send_latency_s
    return answers, arrays._replace(links=np.zeros(table.limits.all_replicas_count))


def _joined(trace: Trace, table: StepTable, first: Replay, later: Replay) -> Replay:
    """Return one replay of the two pools'."""
    decoding = table.limits.replicas_count
    prefill_replica = pc.add(first.requests["replica"], decoding)
    first_gap_s = pc.subtract(later.requests["first_token_s"], first.requests["first_token_s"])
    columns = {name: first.requests[name] for name in REQUESTS_SCHEMA.names} | {
        "output_tokens": trace.requests["output_tokens"],
        "replica": pc.coalesce(later.requests["replica"], prefill_replica),
        "finish_s": pc.coalesce(later.requests["finish_s"], first.requests["finish_s"]),
        "worst_itl_s": pc.max_element_wise(first_gap_s, later.requests["worst_itl_s"]),
        "preemptions": pc.add(first.requests["preemptions"], later.requests["preemptions"]),
        "prefill_replica": prefill_replica,
        "kv_transfer_s": pc.subtract(later.requests["sent_s"], later.requests["arrival_s"]),
    }
    place = first.steps.schema.get_field_index("replica")
    prefill_steps = first.steps.set_column(place, first.steps.schema.field(place), pc.add(first.steps["replica"], decoding))
    steps = pa.concat_tables([later.steps, prefill_steps])
    gaps = first_gap_s.drop_null()
    first_gaps = pa.table({"gap_s": gaps, "tokens": pa.array(np.ones(len(gaps), dtype=np.int64))}, schema=TOKEN_GAPS_SCHEMA)
    return Replay(
        requests=pa.table(columns, schema=REQUESTS_SCHEMA),
        steps=steps.take(np.argsort(steps["start_s"].to_numpy(), kind="stable")).combine_chunks(),
        token_gaps=pa.concat_tables([later.token_gaps, first_gaps]).combine_chunks(),
    )


def _changed(trace: Trace, **columns: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Trace:
    """Return a trace with other values in some columns, for a replay: its digest stays that of the rows it comes from."""
    requests = trace.requests
    for name, values in columns.items():
        place = requests.schema.get_field_index(name)
        requests = requests.set_column(place, requests.schema.field(place), pa.array(values))
    return replace(trace, requests=requests)
