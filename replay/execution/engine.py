"""The replay: requests arrive when they were scheduled to, steps follow one another, each costs what the table says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from replay.errors import InvariantError
from replay.execution.fleet import replay_fleet
from replay.execution.loop_arrays import StepColumns
from replay.execution.pools import replay_pools
from replay.execution.replica import StepNoise, TokenGaps, check_noise, serve_alone, steps_table
from replay.execution.tables import Replay
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

if TYPE_CHECKING:
    from replay.execution.step_sums import Sums


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
        return replay_pools(trace, table, kernel_factors=kernel_factors)
    if trace.provenance.load is not None or table.limits.replicas_count > 1:
        return replay_fleet(trace, table, kernel_factors=kernel_factors)
    steps, gaps = StepColumns(), TokenGaps()
    requests, powered = serve_alone(trace, table, kernel_factors, steps, gaps, noise)
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
    requests, _ = serve_alone(trace, table, kernel_factors, steps, None)
    return requests, steps.sums()


def has_sums(trace: Trace, table: StepTable) -> bool:
    """Return whether `replay_sums` can tell what the steps did: one replica in an open loop, whose steps follow one another."""
    return trace.provenance.load is None and table.limits.all_replicas_count == 1 and table.limits.overlapping_stages == 1
