"""The scheduler of the plain replay: requests, what a step computes of them, and one replica."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from replay.execution.tables import COMPLETED, NEVER_FITS
from replay.execution.twin_cache import Block, Pool
from replay.execution.twin_rules import batch_is_full, batch_seats, continue_by_priority, preferred_size
from replay.tiling.step_table import StepTable

ORDERED_REQUESTS = 128
"""A longer queue is not sorted by prefix or response ratio."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request and how far it has come; equal only to itself."""

    row: dict[str, Any]
    promised: int = 0
    """Output tokens so far, and those that steps in flight will yield."""
    computed: int = 0
    """Tokens whose keys and values are in the cache, or will be when the steps in flight end."""
    prompt_now: int = 0
    """Tokens to compute before it decodes: the prompt, and what had been generated when it was last admitted."""
    reached: int = 0
    kept: int = 0
    """While it waits, tokens that it need not compute again: their keys and values are in host memory, or were received with it."""
    sending: tuple[int, float] | None = None
    """The replica that they are received from, and how long that takes."""
    blocks: list[Block] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit: int = 0
    due_s: float = 0.0
    """From when on it waits."""
    sent_s: float = math.nan
    """When a replica got it."""
    replica: int | None = None
    prefill_replica: int | None = None
    kv_transfer_s: float | None = None
    turn: int = 0
    """How many that replica had got before."""
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens that can be computed: the prompt, and output so far or in flight."""
        return int(self.row["prompt_tokens"]) + self.promised

    @property
    def rank(self) -> tuple[int, int]:
        """What a queue by priority is sorted by."""
        return self.row["priority"] or 0, self.turn

    @property
    def last_is_promised(self) -> bool:
        """Whether the last output token is there or in flight."""
        return bool(self.promised == self.row["output_tokens"])

    @property
    def done(self) -> bool:
        """Whether all output is there."""
        return bool(len(self.token_times_s) == self.row["output_tokens"])

    @property
    def gaps_s(self) -> list[float]:
        """Times between consecutive tokens."""
        return [after - before for before, after in zip(self.token_times_s, self.token_times_s[1:], strict=False)]

    def result(self, fits: bool) -> dict[str, Any]:
        """Return the row of REQUESTS_SCHEMA."""
        copied = {name: self.row[name] for name in ("request_id", "prompt_tokens", "output_tokens")}
        own = {name: getattr(self, name) for name in ("replica", "first_scheduled_s", "preemptions", "prefill_replica", "kv_transfer_s")}
        return {
            **copied,
            **own,
            "arrival_s": self.due_s,
            "sent_s": None if self.replica is None else self.sent_s,
            "status": COMPLETED if fits else NEVER_FITS,
            "first_token_s": self.token_times_s[0] if fits else None,
            "finish_s": self.token_times_s[-1] if fits else None,
            "worst_itl_s": max(self.gaps_s, default=None),
            "prefix_hit_tokens": self.prefix_hit,
        }

    def key(self, place: int, table: StepTable, trace_block_tokens: int) -> Hashable:
        """What names the tokens up to the end of a full block."""
        end = (place + 1) * table.pool.block_tokens
        hashes = self.row["prefix_blocks"] or []
        depth = math.ceil(end / trace_block_tokens)
        if end <= self.row["prompt_tokens"] and depth <= len(hashes):
            return place, tuple(hashes[:depth])
        return place, self.row["request_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one step computes of one request."""

    request: Request
    before: int
    tokens: int
    is_decode: bool
    emits: bool
    """Whether its last token is the last one known, so that a new one comes out."""

    def keys_of_each_token(self, window: int) -> list[int]:
        """Keys that each token attends to."""
        return [min(position, window) for position in range(self.before + 1, self.before + self.tokens + 1)]

    @property
    def recomputed(self) -> int:
        """Tokens that the request had in the cache before."""
        return len(range(self.before, min(self.before + self.tokens, self.request.reached)))


class Engine:
    """One replica in the middle of a replay."""

    def __init__(self, table: StepTable, trace_block_tokens: int) -> None:
        self.table, self.limits = table, table.limits
        self.trace_block_tokens = trace_block_tokens
        self.pool = Pool(table.pool.blocks_count)
        self.preempted: deque[Request] = deque()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preempted_now = 0
        self.preempted_since_last_step = 0
        self.prefix_hit_now = 0
        self.swapped_since_last_step = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs or waits."""
        return not (self.running or self.preempted or self.waiting)

    def schedule(self, now_s: float) -> list[Chunk]:
        """Return what the next step computes, which from here on counts as computed."""
        self.preempted_now = self.prefix_hit_now = 0
        budget = self.limits.max_batched_tokens
        if self.limits.scheduler == "chunked":
            chunks = self.continue_running(budget)
            if not self.preempted_now:
                chunks += self.admit(budget - sum(chunk.tokens for chunk in chunks), now_s)
        elif self.limits.scheduler == "prefill_first":
            chunks = self.admit(budget, now_s) or self.continue_running(budget)
        else:
            chunks = self.continue_running(budget) if self.running else self.admit(budget, now_s)
        self.preempted_since_last_step += self.preempted_now
        return chunks

    def continue_running(self, budget: int) -> list[Chunk]:
        """Compute more of running requests, preempting the newest where blocks run out."""
        if self.limits.queue == "priority":
            return continue_by_priority(self, budget)
        chunks: list[Chunk] = []
        for request in list(self.running):
            if budget == 0 or request not in self.running:
                break
            if not self.may_compute(request):
                continue
            tokens = min(request.known - request.computed, budget)
            missing = self.missing(request, tokens)
            while missing > self.pool.free_count and request in self.running:
                self.preempt(self.running[-1])
            if request in self.running:
                request.blocks += [self.pool.take() for _ in range(missing)]
                chunks.append(self.compute(request, tokens, is_decode=request.computed >= request.prompt_now))
                budget -= tokens
        return chunks

    def admit(self, budget: int, now_s: float) -> list[Chunk]:
        """Let requests run that wait, in the queue's order; one that does not fit ends it or is passed over."""
        chunks: list[Chunk] = []
        if budget == 0 or len(self.running) == self.limits.max_running:
            return chunks
        self.order_queue(now_s)
        if self.limits.scheduler == "static" and self.batch_starts_at(now_s) > now_s:
            return chunks
        seats = batch_seats(self) if self.limits.scheduler == "static" else self.limits.max_running
        for request in [*self.preempted, *self.waiting]:
            if budget == 0 or len(self.running) == seats:
                break
            cached = self.cached_beginning(request)
            hit = len(cached) * self.table.pool.block_tokens + request.kept
            tokens = min(request.known - hit, budget)
            if self.limits.kv_policy == "reserve":
                missing = self.blocks_for(request.row["prompt_tokens"] + request.row["output_tokens"] - 1) - len(cached)
            else:
                missing = self.blocks_for(hit + tokens) - len(cached)
            wanted = self.blocks_for(request.known) - len(cached) if self.limits.kv_policy == "whole_prompt" else missing
            fits = wanted + sum(not block.users for block in cached) <= self.pool.free_count - self.table.watermark_blocks
            if self.awaits_token(request) or not fits or (self.limits.scheduler != "chunked" and hit + tokens < request.known):
                if self.limits.unfit == "block":
                    break
                continue
            (self.preempted if request in self.preempted else self.waiting).remove(request)
            self.running.append(request)
            self.pool.use_again(cached)
            request.blocks = cached + [self.pool.take() for _ in range(missing)]
            request.computed = hit
            new_hit = len(range(request.reached, hit))
            request.prefix_hit += new_hit
            self.prefix_hit_now += new_hit
            if request.kept:
                self.swapped_since_last_step += self.blocks_for(request.kept) if request.preemptions else 0
                request.kept = 0
            else:
                request.prompt_now = request.known
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s
            chunks.append(self.compute(request, tokens, is_decode=hit >= request.prompt_now))
            budget -= tokens
        return chunks

    def order_queue(self, now_s: float) -> None:
        """Sort the waiting requests; where two are equal, their order stays."""
        if self.limits.queue == "sjf":
            self.waiting.sort(key=lambda request: int(request.row["prompt_tokens"]))
        elif self.limits.queue == "priority":
            self.waiting.sort(key=lambda request: request.rank)
        elif len(self.waiting) <= ORDERED_REQUESTS:
            hits = {request: len(self.cached_beginning(request)) * self.table.pool.block_tokens for request in self.waiting}
            if self.limits.queue == "longest_prefix":
                self.waiting.sort(key=lambda request: -hits[request])
            elif self.limits.queue == "hrrn":
                self.waiting.sort(key=lambda request: -(now_s - request.sent_s) / (request.known - request.kept - hits[request]))

    def batch_starts_at(self, now_s: float) -> float:
        """When a static batch may start: now if full or of a preferred size, else when its oldest request has waited long enough."""
        if batch_is_full(self) or preferred_size(self) or not self.waiting:
            return now_s
        return float(min(request.sent_s for request in self.waiting) + self.limits.max_delay_s)

    def awaits_token(self, request: Request) -> bool:
        """Whether a request waits for its next token, which is in flight."""
        return self.limits.inflight_steps > 1 and request.promised > len(request.token_times_s)

    def may_compute(self, request: Request) -> bool:
        """Whether a running request has something to compute."""
        return not (request.last_is_promised or self.awaits_token(request))

    def missing(self, request: Request, tokens: int) -> int:
        """Blocks that a request lacks for its next tokens."""
        return max(0, self.blocks_for(request.computed + tokens) - len(request.blocks))

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return math.ceil(tokens / self.table.pool.block_tokens)

    def cached_beginning(self, request: Request) -> list[Block]:
        """The cached blocks that a request starts from; its last known token is left to compute."""
        if not self.limits.prefix_cache:
            return []
        places = range((request.known - 1) // self.table.pool.block_tokens)
        return self.pool.beginning([request.key(place, self.table, self.trace_block_tokens) for place in places])

    def compute(self, request: Request, tokens: int, *, is_decode: bool) -> Chunk:
        """Compute a request's next tokens; the last known one promises a new one."""
        emits = request.computed + tokens == request.known
        chunk = Chunk(request=request, before=request.computed, tokens=tokens, is_decode=is_decode, emits=emits)
        if self.limits.prefix_cache:
            block = self.table.pool.block_tokens
            for place in range(request.computed // block, (request.computed + tokens) // block):
                self.pool.keep(request.blocks[place], request.key(place, self.table, self.trace_block_tokens))
        request.computed += tokens
        request.promised += emits
        return chunk

    def preempt(self, request: Request) -> None:
        """Put a running request back into the queue: in front, or by priority."""
        self.running.remove(request)
        if self.limits.preemption == "swap":
            request.kept = request.computed
            self.swapped_since_last_step += len(request.blocks)
        request.reached = max(request.reached, request.computed)
        self.pool.give_back(request.blocks)
        request.computed, request.blocks = 0, []
        request.preemptions += 1
        self.preempted_now += 1
        if self.limits.queue == "priority":
            self.waiting.append(request)
        else:
            self.preempted.appendleft(request)

    def finish(self, emitting: list[Request], end_s: float) -> list[Request]:
        """Emit the tokens of a step that ends, release those that are done, and return them."""
        for request in emitting:
            request.token_times_s.append(end_s)
            if request.done:
                self.pool.give_back(request.blocks)
                next(group for group in (self.running, self.preempted, self.waiting) if request in group).remove(request)
        return [request for request in emitting if request.done]
