"""The state of the replay loop as structured arrays: records that compiled code reads and writes in place.

One array per kind keeps a sequence's figures together in memory and spares the loop the reference counts of many arrays.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

import numpy as np

from replay.execution.cache_arrays import CacheArrays
from replay.execution.step_costs import Counts, Floats, Records
from replay.execution.tables import STEPS_SCHEMA
from replay.tiling.step_table import KV_POLICY_NAMES, QUEUE_NAMES, SCHEDULER_NAMES, StepTable

SEQUENCE = np.dtype(
    [
        ("arrival_s", np.float64),
        ("prompt_tokens", np.int64),
        ("total_tokens", np.int64),  # prompt plus output
        ("known_tokens", np.int64),  # prompt plus output so far, tokens in flight included: what can be computed
        ("computed_tokens", np.int64),  # tokens whose keys and values are in the cache, or will be when the steps in flight end
        ("emitted_tokens", np.int64),
        ("prefill_until", np.int64),  # known at the last admission: computing those is prefill, computing later ones is decoding
        ("reached_tokens", np.int64),  # most tokens ever computed: computing those again is recomputation
        ("prefix_hit_tokens", np.int64),  # never computed, for they were in the cache
        ("blocks", np.int64),
        ("slot", np.int64),  # row of its blocks in CacheArrays.tables
        ("preemptions", np.int64),
        ("first_scheduled_s", np.float64),
        ("first_token_s", np.float64),
        ("last_token_s", np.float64),
        ("worst_itl_s", np.float64),
    ]
)
"""One record per request that can fit, in arrival order; the index of a record names the sequence everywhere below."""

SOURCES = ("loop.py", "loop_schedule.py", "loop_queue.py", "loop_blocks.py", "loop_prices.py", "loop_arrays.py")
"""Files whose functions and constants become the compiled loop."""


def sources_digest() -> str:
    """Return what tells one content of SOURCES from another."""
    folder = resources.files(__package__)
    return hashlib.sha256(b"".join(folder.joinpath(name).read_bytes() for name in SOURCES)).hexdigest()[:16]


IN_FLIGHT = np.dtype([("end_s", np.float64), ("emitting", np.int64)])
"""A step that was scheduled and has not ended: when it will, and how many sequences get a token then."""

STATE = np.dtype(
    [
        ("clock_s", np.float64),  # when the next step is scheduled
        ("busy_until_s", np.float64),  # end of the last step in flight
        ("arrived", np.int64),  # requests that have arrived: the first ones, for they are in arrival order
        ("admitted", np.int64),  # requests that have left the queue once
        ("heaped", np.int64),  # requests that have come into the heap of the shortest prompts
        ("preempted", np.int64),  # depth of the stack of preempted sequences, which stand in front of the queue
        ("running", np.int64),
        ("free_blocks", np.int64),
        ("steps", np.int64),  # steps in the current record
        ("in_flight", np.int64),  # steps scheduled and not ended
        ("oldest", np.int64),  # slot of the one that ends first
        ("used_once", np.int64),  # blocks that have ever been taken: the first ones (with the prefix cache)
        ("free_slots", np.int64),  # free rows of CacheArrays.tables
        ("quiet", np.int64),  # last steps in a row in which the same sequences, all that run, decoded
        ("unrecorded_preemptions", np.int64),  # by a schedule that let nothing run
        (f"sources_{sources_digest()}", np.int64),  # makes the type, by which compiled code is found, change with the code
    ]
)

STEP = np.dtype([(field.name, field.type.to_pandas_dtype()) for field in STEPS_SCHEMA])


SCHEDULERS = CHUNKED, PREFILL_FIRST, STATIC = range(3)
QUEUES = FCFS, SJF, LONGEST_PREFIX, HRRN = range(4)
KV_POLICIES = ON_DEMAND, WHOLE_PROMPT, RESERVE = range(3)
"""Codes of the rules of StepLimits, in the order in which SCHEDULER_NAMES, QUEUE_NAMES and KV_POLICY_NAMES list them."""

ORDERED_REQUESTS = 128
"""A longer queue is not sorted by prefix or response ratio (SGLang's limit for longest-prefix-match)."""

LIMITS = np.dtype(
    [
        ("max_delay_s", np.float64),
        *(
            (name, np.int64)
            for name in (
                "max_running", "max_batched_tokens", "window_tokens", "steps_in_flight", "scheduler", "queue",
                "block_tokens", "pool_blocks", "watermark_blocks", "kv_policy", "prefix_cache", "trace_block_tokens", "found_shift",
            )
        ),
    ]
)  # fmt: skip
"""What bounds a step, and what the cache is like; `found_shift` = 64 - log2 of the size of its hash table."""


class Queues(NamedTuple):
    """Where sequences are, by their index, and what holds the loop together."""

    seats: Counts
    """Running sequences in order of admission [seats]."""
    preempted: Counts
    """Stack; its top is the head of the queue [sequences]."""
    waiting: Counts
    """The other ones that wait, see `replay.execution.loop_queue` [sequences]."""
    scores: Floats
    """Room to sort them [ORDERED_REQUESTS]."""
    emitting: Counts
    """Sequences that get a token when a step in flight ends [slots, seats]."""
    in_flight: Records
    """IN_FLIGHT [slots]"""
    state: Records
    """STATE [1]"""
    limits: Records
    """LIMITS [1]"""
    fresh_blocks: Counts
    """Room for a jump: blocks that its steps take [block tokens]."""


def new_sequences(arrival_s: Floats, prompt_tokens: Counts, output_tokens: Counts) -> Records:
    """Return sequences of which nothing has been computed; their times are 0 until the loop sets them."""
    sequences = np.zeros(len(arrival_s), dtype=SEQUENCE)
    sequences["arrival_s"] = arrival_s
    sequences["prompt_tokens"] = sequences["known_tokens"] = prompt_tokens
    sequences["total_tokens"] = prompt_tokens + output_tokens
    return sequences


def new_queues(sequences_count: int, table: StepTable, cache: CacheArrays, trace_block_tokens: int) -> Queues:
    """Return empty queues under a table's limits, with the whole pool free and the clock at 0."""
    bounds, pool = table.limits, table.pool
    slots, seats = 2 if bounds.async_scheduling else 1, min(bounds.max_running, sequences_count)
    limits = np.zeros(1, LIMITS)
    for name, value in {
        **{name: getattr(bounds, name) for name in ("max_delay_s", "max_running", "max_batched_tokens", "prefix_cache")},
        "window_tokens": bounds.attention_window_tokens,
        "steps_in_flight": slots,
        "scheduler": SCHEDULER_NAMES.index(bounds.scheduler),
        "queue": QUEUE_NAMES.index(bounds.queue),
        "block_tokens": pool.block_tokens,
        "pool_blocks": pool.blocks_count,
        "watermark_blocks": table.watermark_blocks,
        "kv_policy": KV_POLICY_NAMES.index(bounds.kv_policy),
        "trace_block_tokens": trace_block_tokens,
        "found_shift": 65 - len(cache.found).bit_length(),
    }.items():
        limits[name] = value
    state = np.zeros(1, dtype=STATE)
    state["free_blocks"], state["free_slots"] = pool.blocks_count, len(cache.slots)
    return Queues(
        seats=np.zeros(seats, dtype=np.int64),
        preempted=np.zeros(sequences_count, dtype=np.int64),
        waiting=np.arange(sequences_count),
        scores=np.zeros(ORDERED_REQUESTS),
        emitting=np.zeros((slots, seats), dtype=np.int64),
        in_flight=np.zeros(slots, dtype=IN_FLIGHT),
        state=state,
        limits=limits,
        fresh_blocks=np.zeros(max(pool.block_tokens, 1), dtype=np.int64),
    )


def drain(record: Records, queues: Queues) -> Counts:
    """Return the recorded steps by column [fields of STEP, steps], 64 bits each whatever their type, and empty the record."""
    steps = int(queues.state["steps"][0])
    queues.state["steps"] = 0
    return record[:steps].view(np.int64).reshape(steps, len(STEPS_SCHEMA)).T.copy()  # type: ignore[no-any-return]


def step_columns(drained: list[Counts]) -> dict[str, Counts | Floats]:
    """Return the columns of STEPS_SCHEMA from drained parts."""
    values = np.concatenate(drained, axis=1)
    return {name: values[index].view(STEP[name]) for index, name in enumerate(STEPS_SCHEMA.names)}
