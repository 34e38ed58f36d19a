"""The state of the replay loop as structured arrays: records that compiled code reads and writes in place.

One array per kind keeps a sequence's figures together in memory and spares the loop the reference counts of many arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.execution.cache_arrays import PrefixCache
from replay.execution.sources import sources_digest
from replay.execution.step_costs import Counts, Floats, Records
from replay.execution.tables import STEPS_SCHEMA
from replay.tiling.step_table import KV_POLICY_NAMES, PREEMPTION_NAMES, QUEUE_NAMES, SCHEDULER_NAMES, UNFIT_NAMES, StepTable

SEQUENCE = np.dtype(
    [
        ("row", np.int64),  # of its request in the trace
        ("arrival_s", np.float64),
        ("prompt_tokens", np.int64),
        ("total_tokens", np.int64),  # prompt plus output
        ("priority", np.int64),  # the smaller, the sooner
        ("known_tokens", np.int64),  # prompt plus output so far, tokens in flight included: what can be computed
        ("computed_tokens", np.int64),  # tokens whose keys and values are in the cache, or will be when the steps in flight end
        ("emitted_tokens", np.int64),
        ("prefill_until", np.int64),  # known at the last admission: computing those is prefill, computing later ones is decoding
        ("reached_tokens", np.int64),  # most tokens ever computed when it was preempted, or before it came here (`kept_tokens`)
        ("prefix_hit_tokens", np.int64),  # never computed, for they were in the cache
        ("blocks", np.int64),
        ("slot", np.int64),  # row of its blocks in `tables`
        ("preemptions", np.int64),
        ("round", np.int64),  # while it is steady, the round up to which this record is booked; else -1
        ("first_scheduled_s", np.float64),
        ("first_token_s", np.float64),
        ("last_token_s", np.float64),
        ("worst_itl_s", np.float64),
        ("score", np.float64),  # when it was last sorted among those that wait
    ]
)
"""One record per request that can fit, in arrival order; the index of a record names the sequence everywhere below."""

SOURCES = (
    "loop.py", "loop_fleet.py", "loop_heap.py", "fleet_arrays.py", "loop_schedule.py", "loop_preempt.py", "loop_steady.py", "loop_queue.py",
    "loop_blocks.py", "loop_prices.py", "loop_power.py", "loop_arrays.py",
)  # fmt: skip
"""Files whose functions and constants become the compiled loop."""


STATE = np.dtype(
    [
        ("clock_s", np.float64),  # when the next step is scheduled
        ("next_s", np.float64),  # when it goes on
        ("phase", np.int64),  # how: COMPOSING, ENDING or WAITING
        ("given", np.int64),  # requests that the loop knows: the first records
        ("finished", np.int64),  # requests that the last step to end has finished
        ("outstanding", np.int64),  # requests that were sent here and are not finished (where there are several replicas)
        ("arrived", np.int64),  # requests that have arrived: the first ones, for they are in arrival order
        ("admitted", np.int64),  # requests that have left the queue once; by priority, less those that are back in it
        ("heaped", np.int64),  # requests that have come into the heap of those that wait
        ("preempted", np.int64),  # depth of the stack of preempted sequences, which stand in front of the queue
        ("running", np.int64),
        ("free_blocks", np.int64),
        ("steps", np.int64),  # steps in the current record
        ("in_flight", np.int64),  # steps scheduled and not ended
        ("oldest", np.int64),  # place of the one that ends first in the rings `emitting`, `flights` and `ends_s`
        ("newest_listed", np.int64),  # length of the list of the step composed last
        ("newest_is_round", np.int64),
        ("used_once", np.int64),  # blocks that have ever been taken: the first ones (with the prefix cache)
        ("free_slots", np.int64),  # free rows of `tables`
        ("blocked_budget", np.int64),  # budget with which the head of the queue lacked blocks; -1 when it may find some
        ("front", np.int64),  # first seats, of steady sequences or such as have their last token in flight
        ("steady", np.int64),  # steady sequences
        ("implied", np.int64),  # those of them that get a token out of the step that was composed last
        ("steady_context", np.int64),  # keys that all of them together see in the next round
        ("growing", np.int64),  # those of them that will see one more in the round after
        ("next_window_round", np.int64),  # no later than the next round in which one of them comes to see the whole window
        ("next_last_round", np.int64),  # no later than the next round out of which the last token of one of them comes
        ("rounds", np.int64),  # rounds composed
        ("ended_rounds", np.int64),
        ("round_end_s", np.float64),  # end of the last one of those
        ("gaps", np.int64),  # depth of the stack of gaps
        ("token_gaps", np.int64),  # gaps between tokens in the current record of them
        ("variants", np.int64),  # compiled ones
        ("unrecorded_preemptions", np.int64),  # by a schedule that let nothing run
        ("swapped_blocks", np.int64),  # moved to host memory and back since the last step was composed
        (f"sources_{sources_digest(*SOURCES)}", np.int64),  # makes the type, by which compiled code is found, change with the code
    ]
)

GAP = np.dtype([("round", np.int64), ("gap_s", np.float64)])
"""A round and the time since the end of the round before it."""
GAPS_KEPT = 1024
TOKEN_GAP = np.dtype([("gap_s", np.float64), ("tokens", np.int64)])
"""A row of TOKEN_GAPS_SCHEMA."""
TOKEN_GAPS_RECORDED = 4096
"""Rows recorded between two drains, beside what one step may add."""
NEVER = 1 << 62

STEP = np.dtype([(field.name, field.type.to_pandas_dtype()) for field in STEPS_SCHEMA if not field.nullable])
"""Columns of STEPS_SCHEMA that every step has; the others are those of `replay.execution.power_arrays`."""
STEP_NAMES: tuple[str, ...] = STEP.names or ()


PHASES = COMPOSING, ENDING, WAITING = range(3)
"""What the loop does next: compose a step, end the oldest one in flight, or compose one when a batch has waited long enough."""
LISTED, IMPLIED, IS_ROUND, FLIGHT_PLACES = range(4)
"""Places of what is kept of a step in flight: the length of its list, steady sequences that get a token from it, whether it is a round."""
SCHEDULERS = CHUNKED, PREFILL_FIRST, STATIC = range(3)
QUEUES = FCFS, SJF, LONGEST_PREFIX, HRRN, PRIORITY = range(5)
KV_POLICIES = ON_DEMAND, WHOLE_PROMPT, RESERVE = range(3)
UNFITS = BLOCK, SKIP = range(2)
PREEMPTIONS = RECOMPUTE, SWAP = range(2)
"""Codes of the rules of StepLimits, in the order in which SCHEDULER_NAMES, QUEUE_NAMES and so on list them."""

ORDERED_REQUESTS = 128
"""A longer queue is not sorted by prefix or response ratio (SGLang's limit for longest-prefix-match)."""

LIMITS = np.dtype(
    [
        ("max_delay_s", np.float64),
        ("block_swap_s", np.float64),
        ("compile_variant_s", np.float64),
        *(
            (name, np.int64)
            for name in (
                "max_running", "max_batched_tokens", "window_tokens", "steps_in_flight", "awaits_tokens", "stages", "scheduler", "queue",
                "block_tokens", "pool_blocks", "watermark_blocks", "kv_policy", "unfit", "preemption", "preferred_count",
                "host_overlap", "compile_bins", "compile_max_variants", "stops_at_finish",
                "prefix_cache", "trace_block_tokens", "ring", "found_mask", "found_shift", "table_blocks",
                "seats_at", "preempted_at", "waiting_at", "emitting_at", "flights_at", "finished_at", "preferred_at", "fresh_at",
                "compile_bins_at",
                "blocks_at", "found_at", "tables_at", "slots_at", "starts_at", "nodes_at",
            )
        ),
    ]
)  # fmt: skip
"""What bounds a step, and where the parts of the memory start."""


class LoopArrays(NamedTuple):
    """What the loop works on, beside sequences, costs and record."""

    memory: Counts
    """Parts of whole numbers in one array, for each further array that the loop hands on costs it time. The prefix cache, where
    there is one (`replay.execution.cache_arrays`), and by the name of the limit that says where they start: `seats_at`, running
    sequences in order of admission; `preempted_at`, stack whose top is the head of the queue; `waiting_at`, the others that wait
    (`replay.execution.loop_queue`); `emitting_at`, for each step in flight the sequences that get a token when it ends
    [steps in flight, max running]; `flights_at`, what else is kept of each [steps in flight, 3]; `finished_at`, the sequences that the
    last step to end has finished; `preferred_at`, preferred sizes of a batch, ascending; `fresh_at`, blocks that steady sequences need
    in each round, which repeat [block tokens]; `compile_bins_at`, largest tokens of each compiled variant, then whether it exists
    [2, variants].
    """
    gaps: Records
    """Stack of GAP [GAPS_KEPT], see `replay.execution.loop_steady`."""
    token_gaps: Records
    """TOKEN_GAP, as many as `token_gaps` of the state says."""
    ends_s: Floats
    """Ends of the steps in flight, and then, for each pipeline stage, when the step composed last leaves it [steps in flight + stages]."""
    state: Records
    """STATE [1]"""
    limits: Records
    """LIMITS [1]"""


def new_sequences(rows: Counts, arrival_s: Floats, prompt_tokens: Counts, output_tokens: Counts, priority: Counts) -> Records:
    """Return sequences of which nothing has been computed; their times are 0 until the loop sets them."""
    sequences = np.zeros(len(arrival_s), dtype=SEQUENCE)
    sequences["row"] = rows
    sequences["arrival_s"] = arrival_s
    sequences["prompt_tokens"] = sequences["known_tokens"] = prompt_tokens
    sequences["total_tokens"] = prompt_tokens + output_tokens
    sequences["priority"] = priority
    sequences["round"] = -1
    return sequences


def new_arrays(sequences_count: int, table: StepTable, cache: PrefixCache) -> LoopArrays:
    """Return empty queues under a table's limits, with the whole pool free and the clock at 0."""
    bounds, pool = table.limits, table.pool
    steps_in_flight, bins = 2 if bounds.async_scheduling else bounds.inflight_steps, len(bounds.compile_bins)
    parts = cache.parts | {
        "seats_at": np.zeros(bounds.max_running, dtype=np.int64),
        "preempted_at": np.zeros(sequences_count, dtype=np.int64),
        "waiting_at": np.arange(sequences_count),
        "emitting_at": np.zeros(steps_in_flight * bounds.max_running, dtype=np.int64),
        "flights_at": np.zeros(steps_in_flight * FLIGHT_PLACES, dtype=np.int64),
        "finished_at": np.zeros(bounds.max_running, dtype=np.int64),
        "preferred_at": np.array(bounds.preferred_sizes, dtype=np.int64),
        "fresh_at": np.zeros(pool.block_tokens, dtype=np.int64),
        "compile_bins_at": np.array([*bounds.compile_bins, *(place < bounds.compiled_at_start for place in range(bins))], dtype=np.int64),
    }
    starts = np.cumsum([0, *(len(part) for part in parts.values())])
    limits = np.zeros(1, LIMITS)
    for name, value in {
        **{name: getattr(bounds, name) for name in ("max_delay_s", "compile_variant_s", "max_running", "max_batched_tokens")},
        "host_overlap": bounds.host_overlap,
        "compile_bins": bins,
        "compile_max_variants": NEVER if bounds.compile_max_variants is None else bounds.compile_max_variants,
        "window_tokens": bounds.attention_window_tokens,
        "steps_in_flight": steps_in_flight,
        "awaits_tokens": bounds.inflight_steps > 1,
        "stages": bounds.overlapping_stages,
        "scheduler": SCHEDULER_NAMES.index(bounds.scheduler),
        "queue": QUEUE_NAMES.index(bounds.queue),
        "block_tokens": pool.block_tokens,
        "pool_blocks": pool.blocks_count,
        "watermark_blocks": table.watermark_blocks,
        "kv_policy": KV_POLICY_NAMES.index(bounds.kv_policy),
        "unfit": UNFIT_NAMES.index(bounds.unfit),
        "preemption": PREEMPTION_NAMES.index(bounds.preemption),
        "block_swap_s": pool.block_swap_s,
        "preferred_count": len(bounds.preferred_sizes),
        **cache.limits,
        **dict(zip(parts, starts.tolist(), strict=False)),
    }.items():
        limits[name] = value
    state = np.zeros(1, dtype=STATE)
    state["given"], state["variants"], state["clock_s"] = sequences_count, bounds.compiled_at_start, bounds.ready_s
    state["free_blocks"], state["free_slots"] = pool.blocks_count, len(cache.parts.get("slots_at", ()))
    state["blocked_budget"], state["next_window_round"], state["next_last_round"] = -1, NEVER, NEVER
    return LoopArrays(
        memory=np.concatenate(list(parts.values())),
        gaps=np.zeros(GAPS_KEPT, dtype=GAP),
        token_gaps=np.zeros(TOKEN_GAPS_RECORDED + bounds.max_running, dtype=TOKEN_GAP),
        ends_s=np.zeros(steps_in_flight + bounds.overlapping_stages),
        state=state,
        limits=limits,
    )


def drain_gaps(arrays: LoopArrays) -> Records:
    """Return the recorded gaps between tokens, and empty the record."""
    recorded = arrays.token_gaps[: int(arrays.state["token_gaps"][0])].copy()
    arrays.state["token_gaps"] = 0
    return recorded


class StepColumns:
    """Recorded steps by column, 64 bits each whatever their type, in one array that grows with foresight."""

    FIRST_STEPS = 4096
    FORESIGHT_RATIO = 1.1
    """Room beyond what the share of requests admitted so far lets expect. Memory that is never touched costs nothing, unless there are more
    than 32 MiB: glibc's malloc fetches those anew for every replay. W2 of `bench/replay_speed.py` asks for 30 (at 1.25: 34)."""
    GROWTH_RATIO = 32
    """Most that it grows at once, for the first requests may say little of the others."""

    def __init__(self, room: int = 0) -> None:
        self._values: Counts = np.empty((len(STEP_NAMES), max(room, self.FIRST_STEPS)), dtype=np.int64)
        self._steps = 0

    def drain(self, record: Records, state: Records, requests_count: int) -> None:
        """Take the recorded steps and empty the record."""
        from replay.execution.loop_record import copy_columns

        steps, fields = int(state["steps"][0]), len(STEP_NAMES)
        if self._steps + steps > self._values.shape[1]:
            grown = requests_count / max(1, int(state["admitted"][0]))
            room = int(self.FORESIGHT_RATIO * min(max(grown, 2.0), self.GROWTH_RATIO) * (self._steps + steps))
            larger = np.empty((fields, room), dtype=np.int64)
            larger[:, : self._steps] = self._values[:, : self._steps]
            self._values = larger
        copy_columns(record[:steps].view(np.int64).reshape(steps, fields), self._values[:, self._steps : self._steps + steps])
        self._steps += steps
        state["steps"] = 0

    def emptied(self) -> StepColumns:
        """Return a new one with room for as many steps as this one holds, and some more."""
        return StepColumns(int(self.FORESIGHT_RATIO * self._steps))

    def columns(self) -> dict[str, Counts | Floats]:
        """Return the columns of STEP."""
        return {name: self._values[index, : self._steps].view(STEP[name]) for index, name in enumerate(STEP_NAMES)}
