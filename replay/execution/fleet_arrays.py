"""What the requests of a fleet and its replicas are held in, and how finished sequences make room for new ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.execution.loop_arrays import LoopArrays
from replay.execution.step_costs import Counts, Floats, Records

ROUTINGS = ROUND_ROBIN, LEAST_LOADED, POWER_OF_TWO, PREFIX_AWARE = range(4)
"""Codes of ROUTING_NAMES, in its order."""

PENDING = np.dtype(
    [
        ("row", np.int64),
        ("due_s", np.float64),  # when it arrives at the client, from which its latencies count; of a closed loop, when it was sent
        ("prompt_tokens", np.int64),
        ("total_tokens", np.int64),
        ("priority", np.int64),
        ("next_row", np.int64),  # of the request that waits for its answer, or -1
        ("sent_s", np.float64),  # when a replica gets it
        ("replica", np.int64),
        ("received_tokens", np.int64),  # of the prompt, computed elsewhere: their keys and values are sent with it
        ("sender", np.int64),  # the replica that they come from
        ("send_s", np.float64),  # how long its link and that of the receiver are busy with them
    ]
)
"""A request of the trace, by its row."""
ENTRY = np.dtype([("at_s", np.float64), ("row", np.int64)])
"""Of a binary heap by time, then row."""
FLEET = np.dtype(
    [
        ("think_s", np.float64),
        *(
            (name, np.int64)
            for name in (
                "first_row",  # of PENDING
                "next",  # of the requests that wait for no other one, how many were sent
                "ready",  # length of the heap of those that wait for none any more
                "clients",  # length of the heap of free clients, by when they are free
                "limited",  # whether clients are limited in number
                "closed",  # whether requests have no arrivals of their own
                "waits",  # whether what one replica finishes decides what is sent
                "more",  # whether later requests are not in PENDING yet
                "routing", "turn", "random",
                "replica",  # that stopped the loop
            )
        ),
    ]
)  # fmt: skip


class FleetArrays(NamedTuple):
    """What has not been sent yet."""

    pending: Records
    """PENDING [requests]"""
    roots: Counts
    """Rows of the requests that wait for no answer, in the order in which they are due."""
    ready: Records
    """ENTRY [requests]: those that waited for an answer which has come."""
    clients: Records
    """ENTRY [concurrency]"""
    links: Floats
    """When the link of each replica, and then of each sender, is free again [replicas + senders]; empty without senders."""
    fleet: Records
    """FLEET [1]"""


def new_pending(rows: Counts, arrival_s: Floats, prompt_tokens: Counts, output_tokens: Counts, priority: Counts) -> Records:
    """Return requests that wait for no other one."""
    pending = np.zeros(len(rows), dtype=PENDING)
    pending["row"], pending["due_s"], pending["prompt_tokens"] = rows, arrival_s, prompt_tokens
    pending["total_tokens"] = prompt_tokens + output_tokens
    pending["priority"] = priority
    pending["next_row"] = -1
    return pending


def is_done(sequences: Records) -> npt.NDArray[np.bool_]:
    """Return whether all output of sequences is there [sequences]."""
    return np.asarray(sequences["prompt_tokens"] + sequences["emitted_tokens"] == sequences["total_tokens"])


def make_room(sequences: Records, arrays: LoopArrays, sizes: dict[str, int]) -> Records:
    """Return the finished ones of a replica's sequences and close up on their places; all that names a sequence follows.

    `sizes` are the lengths of the parts of the memory that hold names of sequences. Who waits is in the memory from `admitted` on, and
    whom the queue has not looked at yet is there under its own place; both stay so.
    """
    state, limits, memory = arrays.state[0], arrays.limits[0], arrays.memory
    given, admitted, arrived = int(state["given"]), int(state["admitted"]), int(state["arrived"])
    done = is_done(sequences[:given])
    names = np.cumsum(~done) - 1
    finished = sequences[:given][done].copy()
    gone = int(done.sum())
    waiting = int(limits["waiting_at"])
    heap = memory[waiting : waiting + int(state["heaped"]) - admitted].copy() if state["heaped"] else None
    queue = memory[waiting + admitted : waiting + given].copy()
    for part in ("seats_at", "preempted_at", "emitting_at", "finished_at"):
        start = int(limits[part])
        held = memory[start : start + sizes[part]]
        held[:] = names[np.clip(held, 0, max(given - 1, 0))] if given else 0
    capacity = sizes["waiting_at"]
    memory[waiting : waiting + capacity] = np.arange(capacity)
    if heap is not None:
        memory[waiting : waiting + len(heap)] = names[heap]
    else:
        memory[waiting + admitted - gone : waiting + given - gone] = names[queue]
    sequences[: given - gone] = sequences[:given][~done]
    state["given"], state["admitted"], state["arrived"] = given - gone, admitted - gone, arrived - gone
    if state["heaped"]:
        state["heaped"] -= gone
    return finished
