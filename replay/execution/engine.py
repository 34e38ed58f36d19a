"""The replay: requests arrive when they were scheduled to, steps follow one another, each costs what the table says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import InvariantError, SpecError, TraceError
from replay.execution.admission import FITS, rejections
from replay.execution.cache_arrays import new_cache
from replay.execution.cost_arrays import CostArrays, flatten
from replay.execution.loop_arrays import SEQUENCE, STEP, LoopArrays, StepColumns, drain_gaps, new_arrays, new_sequences
from replay.execution.power_arrays import PowerArrays, PoweredColumns, new_power
from replay.execution.step_costs import Counts, Floats, Records
from replay.execution.tables import COMPLETED, NEVER_FITS, REQUESTS_SCHEMA, STEPS_SCHEMA, TOKEN_GAPS_SCHEMA, Replay
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

if TYPE_CHECKING:
    from replay.execution.step_sums import StepSums, Sums

RECORD_STEPS = 1024
"""Steps recorded between two drains: about 150 kilobytes, which stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepNoise:
    """What device times of steps are multiplied by, as it changes in time: by the clock, so that replays whose steps differ keep step."""

    until_s: Floats
    """Until which start of a step each factor holds, ascending [factors]; the last one holds to the end."""
    factors: Floats
    """[factors]"""


def replay(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None, noise: StepNoise | None = None) -> Replay:
    """Return what would have happened: the trace's requests, open loop from their scheduled arrivals, on one replica.

    Several replicas, and requests that are sent otherwise: see `replay.execution.fleet`; replicas that only compute prompts, and others
    that go on from them: `replay.execution.pools`. Of a replica:

    Continuous batching and a paged cache, after vLLM V1 where `table.limits` do not ask for other rules:

    - A step starts when the one before ended or, when nothing is left to run, at the next arrival. Requests that arrived at
      or before its start take part. It lasts max(device, host) seconds.
    - With `async_scheduling` (vLLM's `--async-scheduling`, its default since 0.14; the rules are those that fit logs of 0.19) two
      steps are in flight: one is composed when the step before the one before it ends, so that arrivals wait for a whole step
      more; an idle server starts at once and composes its second step at the same time. Whoever has its last token in flight
      keeps its seat and blocks, and computes nothing. Tokens in flight of a preempted sequence still come out. Without it
      (older versions, and `--no-async-scheduling`), a step is composed at its start.
    - With `inflight_steps` above 1, so many micro-batches are in flight in a pipeline (the batch queue of vLLM V1, whose
      `max_concurrent_batches` is the pipeline size). A step is composed while there are fewer: an idle server composes at once, a full
      one, or one that has nothing to compose, when the oldest step ends. Who has its next token in flight computes nothing until it is
      out; preempted, it holds up the queue until then or is passed over (`unfit`). Chunks of one prompt may follow one another, for
      tokens count as computed when they are scheduled (V1's num_computed_tokens).
      Stages are a flow shop: a step enters one when it has left the stage before and the step before it has left this one, and stays
      for its share of max(device, host); `start_s` is when it enters the first, `end_s` when it leaves the last. Shares are the
      same for all steps of a table: the stages' parts of the token-wise kernels' seconds in a full prefill step.
    - `scheduler`, the default `chunked` (vLLM V1; Sarathi-Serve, arXiv 2403.02310): running sequences go first, in order of
      admission: the next token of a decoding one, or the next chunk (what the token budget leaves) of an unfinished prompt. Then,
      unless this step preempted, waiting ones are admitted while budget, seats and cache blocks last.
      `prefill_first` (vLLM V0 without chunked prefill): waiting ones are admitted with whole prompts, in steps without decodes;
      where none can be, all running ones decode. V0 wants a free block for each decode, here only one that needs it takes it.
      `static` (request-level batching, as of FasterTransformer; Orca, OSDI 2022, section 2): requests are admitted, with whole
      prompts, only when nothing runs, and the batch runs until all of it is done. With `max_delay_s` it waits to fill, to
      `max_running` requests or `max_batched_tokens` tokens, until its oldest request has waited so long: Triton's dynamic
      batcher (max_queue_delay_microseconds) where requests have one output token, as those of encoders and image networks.
      With `preferred_sizes` (Triton's preferred_batch_size, as its model configuration guide has it): where the queue can fill a batch of
      a preferred size, one of the largest such size is sent at once and the others stay, whatever the delay; where it fills the largest
      batch allowed, that is sent. Else the batch waits for more until its oldest request has waited `max_delay_s`, then all are sent.
    - `queue`: `fcfs`; `sjf`, shortest prompt first (BLIS); `longest_prefix`, most cached tokens first (SGLang's lpm); `hrrn`,
      highest response ratio (Brinch Hansen 1971), that is time waited for each prompt token left to compute. The last two sort
      the queue for every step that could admit, and leave it alone while more than 128 wait (SGLang's limit for lpm).
      Preempted sequences stand in front. `priority` (vLLM V1's `--scheduling-policy priority`): the smallest `priority` of the trace
      first (null is 0), then by arrival, preempted ones too. Nobody is preempted for one that waits.
    - `unfit`: a waiting request that lacks cache blocks, or budget for its whole prompt, holds up those behind it (`block`, as vLLM V1),
      or is passed over in this step and keeps its place (`skip`: first fit; not the rule of a server that is named here). Nothing
      keeps smaller ones from passing it again and again.
    - `kv_policy`: `on_demand` admits whoever has blocks for its first chunk (older vLLM V1; TensorRT-LLM's MAX_UTILIZATION);
      `whole_prompt` wants the whole prompt's blocks free, but takes them by chunks (vLLM 0.19); `reserve` takes all blocks that
      prompt and output will need, so that nobody is preempted (TensorRT-LLM's GUARANTEED_NO_EVICT). Admission leaves
      `kv_watermark_ratio` of the pool free (vLLM V0: 0.01).
    - Blocks are taken when the tokens that need them are scheduled, for the whole context also under a sliding window, and
      returned when the request finishes. The last output token is never a key and needs no room.
    - With `prefix_cache` (vLLM V1's automatic prefix caching) full blocks are found again by the tokens from the first to their
      end, by requests and by a preempted sequence that returns, from the moment the step that fills them is composed. They are
      shared and counted once; a block that nobody uses keeps its content until it is taken, longest unused first, a sequence's last
      block before its first. Whoever is admitted leaves out the tokens of its cached first blocks, but never its last token.
      Which prompts begin alike is what the trace's `prefix_blocks` say; what they do not cover, and all output, is found by its own
      request alone. Blocks of the same content that were computed side by side stay two.
    - Where a running sequence finds no free block, the newest running one (perhaps itself) is preempted: it returns its
      blocks, goes to the *front* of the queue, and later computes prompt and generated tokens again as a prompt. By `priority`,
      the running one of the largest (priority, arrival) is preempted and goes back to its place in the queue. If it had its share of
      the step, that is undone, and the one that lacked blocks tries again with the budget given back (in vLLM,
      those behind it have that). If it is the one that lacks blocks, those behind it wait for the next step, unless nobody went before.
    - `preemption`: `recompute` as above; with `swap` (vLLM V0's `--preemption-mode swap`, `--swap-space`) the blocks go to host memory,
      of which there is enough, and come back when it is admitted again, which takes blocks for all of its tokens. It goes on where it
      stopped: with its next token or the rest of its prompt, in a step that may hold prompts. Each block costs block bytes / host
      link rate, each way, on top of the device time of the first step composed with or after the move; nothing overlaps it. (V0
      swapped only groups of several sequences unless told, and let no prompt in while any was out; here the front of the queue does
      that, with `block`.) Not with `prefix_cache`.
    - The step that computes the last token of a prompt emits the first output token at its end; every decode emits one.
    - With `compile_bins`, kernels are compiled for a bin of token counts when the first step needs it, which waits `compile_variant_s`
      (just-in-time compilers: DeepGEMM, Triton, torch.compile); steps beyond the last bin need nothing compiled. `at_start`: all
      bins are compiled from time 0 on, and the server serves when that is done (vLLM's compile_sizes); `before_ready`: before time 0.
      Beyond `compile_max_variants`, further bins run eagerly (torch.compile's recompile limit).
    - A one-token chunk of a prompt counts as prefill. A query sees `attention_window_tokens` keys at most, itself included.
    - Prompt plus output beyond `max_context_tokens`, or a cache beyond the pool, can never fit: such requests keep their row,
      with null times and the status `never_fits`.

    - Where the table has `power`, each step runs at the clock that power and heat allow (`replay.execution.power_arrays`).

    `kernel_factors` scales a kernel's whole time (1 where absent). `noise` multiplies the device time of each step (of one open-loop
    replica without power). Equal arrivals keep the trace's order. Deterministic.

    Raises:
        TraceError: the trace has no requests, no arrival times, or prefix blocks of unstated length where they count.
        SpecError: a factor names no kernel of the table, or is not a finite number >= 0; or prompts are computed in a pool of their own
            and requests wait for answers; or noise is given for several replicas, a closed loop, or a device with power.
        InvariantError: the table breaks its contract, or a law of the replay is broken.
    """
    if noise is not None:
        check_noise(trace, table, noise)
    if table.limits.prefill_replicas_count:
        from replay.execution.pools import replay_pools

        return replay_pools(trace, table, kernel_factors=kernel_factors)
    if trace.provenance.load is not None or table.limits.replicas_count > 1:
        from replay.execution.fleet import replay_fleet

        return replay_fleet(trace, table, kernel_factors=kernel_factors)
    steps, gaps = StepColumns(), TokenGaps()
    requests, powered = _serve(trace, table, kernel_factors, steps, gaps, noise)
    return Replay(requests=requests, steps=steps_table(steps.columns() | powered.columns()), token_gaps=gaps.table())


def replay_sums(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> tuple[pa.Table, Sums]:
    """Return the requests (REQUESTS_SCHEMA) of `replay`, and sums over its steps in place of them: what many replays can be kept of.

    Raises:
        InvariantError: steps of the table overlap in a pipeline or run on several replicas, so that their sums are not one server's.
        SpecError, TraceError: as `replay`.
    """
    if not has_sums(trace, table):
        raise InvariantError("sums over steps are of one replica, whose steps follow one another")
    from replay.execution.step_sums import StepSums

    steps = StepSums()
    requests, _ = _serve(trace, table, kernel_factors, steps, None)
    return requests, steps.sums()


def has_sums(trace: Trace, table: StepTable) -> bool:
    """Return whether `replay_sums` can tell what the steps did: one replica in an open loop, whose steps follow one another."""
    return trace.provenance.load is None and table.limits.all_replicas_count == 1 and table.limits.overlapping_stages == 1


def _serve(
    trace: Trace,
    table: StepTable,
    kernel_factors: Mapping[str, float] | None,
    steps: StepColumns | StepSums,
    gaps: TokenGaps | None,
    noise: StepNoise | None = None,
) -> tuple[pa.Table, PoweredColumns]:
    """Run the loop; return REQUESTS_SCHEMA and what the steps drew, and hand the steps and gaps to what takes them."""
    check_arrivals(trace)
    costs = flatten(table, kernel_factors)
    if noise is not None:
        costs = costs._replace(noise_until_s=noise.until_s, noise_factors=noise.factors)
    requests = trace.requests
    fits = rejections(requests, table) == FITS
    arrival_s, prompt, output = (requests[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens"))
    priority = requests["priority"].fill_null(0).to_numpy()
    order = np.argsort(arrival_s, kind="stable")
    order = order[fits[order]]
    sequences = new_sequences(order, arrival_s[order], prompt[order], output[order], priority[order])
    cache = new_cache(trace, sequences["total_tokens"], table)
    power = new_power(table, kernel_factors, RECORD_STEPS)
    powered = _run(sequences, costs, new_arrays(len(sequences), table, cache), power, steps, gaps)
    served = sequences
    if not np.array_equal(order, np.arange(requests.num_rows)):
        served = np.zeros(requests.num_rows, dtype=SEQUENCE)
        served[order] = sequences
    return requests_table(requests, fits, served, replica=np.zeros(len(fits), dtype=np.int64)), powered


def check_arrivals(trace: Trace) -> None:
    """Raise TraceError where a trace cannot be replayed in time."""
    if trace.requests.num_rows == 0:
        raise TraceError(trace.name, "the trace has no requests", "at least one", "check how it was imported or sliced")
    load = trace.provenance.load
    if not trace.has_arrivals and (load is None or load.concurrency is None):
        raise TraceError(trace.name, "its requests have no arrival times", "arrival_s in every row", "import with --rate")


def check_noise(trace: Trace, table: StepTable, noise: StepNoise) -> None:
    """Raise SpecError where noise has no meaning, or is none."""
    limits = table.limits
    if limits.prefill_replicas_count or limits.replicas_count > 1 or trace.provenance.load is not None or table.power is not None:
        raise SpecError("noise", "several replicas, a closed loop or a device with power", "one open-loop replica without", "leave it out")
    usable = np.isfinite(noise.factors).all() and bool((noise.factors >= 0).all())
    if len(noise.factors) == 0 or len(noise.until_s) != len(noise.factors) or not usable or bool((np.diff(noise.until_s) < 0).any()):
        raise SpecError("noise", "its factors or times", "as many ascending times as finite factors >= 0, at least one", "correct it")


def _run(
    sequences: Records,
    costs: CostArrays,
    arrays: LoopArrays,
    power: PowerArrays | None,
    steps: StepColumns | StepSums,
    gaps: TokenGaps | None,
) -> PoweredColumns:
    """Run the loop to its end on `sequences`, which it fills in."""
    from replay.execution import loop

    record, powered = np.zeros(RECORD_STEPS, dtype=STEP), PoweredColumns(power and power.record)
    outcome = loop.RECORD_FULL
    while outcome == loop.RECORD_FULL:
        outcome = loop.run_steps(sequences, *arrays, tuple(costs), record, power and tuple(power), np.inf)
        powered.drain(arrays.state)
        steps.drain(record, arrays.state, len(sequences))
        if gaps is None:
            arrays.state["token_gaps"] = 0
        else:
            gaps.add(drain_gaps(arrays))
    if outcome == loop.STUCK:
        raise InvariantError(f"the replay stopped at {arrays.state['clock_s'][0]} s with requests waiting and nothing that can run")
    return powered


class TokenGaps:
    """Recorded gaps between tokens."""

    def __init__(self) -> None:
        self._recorded: list[Records] = []

    def add(self, recorded: Records) -> None:
        """Take gaps [TOKEN_GAP]."""
        self._recorded.append(recorded)

    def table(self) -> pa.Table:
        """Return TOKEN_GAPS_SCHEMA."""
        joined = np.concatenate(self._recorded)
        columns = {name: np.ascontiguousarray(joined[name]) for name in TOKEN_GAPS_SCHEMA.names}
        return pa.table(columns, schema=TOKEN_GAPS_SCHEMA)


def steps_table(columns: dict[str, Counts | Floats]) -> pa.Table:
    """Return STEPS_SCHEMA; the columns of power, where they are not given, are null."""
    steps = len(columns["start_s"])
    return pa.table(
        {field.name: columns[field.name] if field.name in columns else pa.nulls(steps, field.type) for field in STEPS_SCHEMA},
        schema=STEPS_SCHEMA,
    )


def requests_table(
    requests: pa.Table, fits: npt.NDArray[np.bool_], served: Records, *, replica: Counts, arrival_s: Floats | None = None
) -> pa.Table:
    """Return REQUESTS_SCHEMA of a trace's requests, their sequences and replicas; those that can never fit were not served.

    `arrival_s` [requests]: from when latencies count, where that is not the trace's arrival.
    """
    never_fits = ~fits

    def column(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        return pa.array(values, mask=never_fits if missing is None else missing)

    columns = {
        **{name: requests[name] for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens")},
        "status": pc.if_else(pa.array(fits), COMPLETED, NEVER_FITS),
        "replica": column(replica),
        "sent_s": column(served["arrival_s"]),
        "first_scheduled_s": column(served["first_scheduled_s"]),
        "first_token_s": column(served["first_token_s"]),
        "finish_s": column(served["last_token_s"]),
        "worst_itl_s": column(served["worst_itl_s"], never_fits | (requests["output_tokens"].to_numpy() == 1)),
        "preemptions": pa.array(served["preemptions"]),
        "prefix_hit_tokens": pa.array(served["prefix_hit_tokens"]),
        **{name: pa.nulls(len(fits), REQUESTS_SCHEMA.field(name).type) for name in ("prefill_replica", "kv_transfer_s")},
    }
    if arrival_s is not None:
        columns["arrival_s"] = pa.array(arrival_s)
    return pa.table(columns, schema=REQUESTS_SCHEMA)
