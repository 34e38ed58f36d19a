"""The replay again, in plain Python with the obvious data structures: the oracle of the compiled loop.

It shares no code with the loop; for the same input the two give equal tables, bit by bit. Slow: about 10^5 tokens a second.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from replay.execution.cache_arrays import trace_block_tokens
from replay.execution.engine import check_arrivals
from replay.execution.step_costs import check_factors
from replay.execution.tables import COMPLETED, NEVER_FITS, REQUESTS_SCHEMA, STEPS_SCHEMA, Replay
from replay.execution.twin_cache import Block, Pool
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """A request and how far it has come; equal only to itself."""

    row: dict[str, Any]
    promised: int = 0
    """Output tokens so far, and those that steps in flight will yield."""
    computed: int = 0
    """Tokens whose keys and values are in the cache, or will be when the steps in flight end."""
    prompt_now: int = 0
    """Tokens to compute before it decodes: the prompt, and what had been generated when it was last admitted."""
    reached: int = 0
    blocks: list[Block] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit: int = 0
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)

    @property
    def known(self) -> int:
        return int(self.row["prompt_tokens"]) + self.promised

    @property
    def last_is_promised(self) -> bool:
        return bool(self.promised == self.row["output_tokens"])

    @property
    def done(self) -> bool:
        return bool(len(self.token_times_s) == self.row["output_tokens"])

    def result(self, fits: bool) -> dict[str, Any]:
        gaps = [after - before for before, after in zip(self.token_times_s, self.token_times_s[1:], strict=False)]
        copied = {name: self.row[name] for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens")}
        return copied | {
            "status": COMPLETED if fits else NEVER_FITS,
            "first_scheduled_s": self.first_scheduled_s,
            "first_token_s": self.token_times_s[0] if fits else None,
            "finish_s": self.token_times_s[-1] if fits else None,
            "worst_itl_s": max(gaps, default=None),
            "preemptions": self.preemptions,
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
class _Chunk:
    """What one step computes of one request."""

    request: _Request
    before: int
    tokens: int
    is_decode: bool
    emits: bool
    """Whether its last token is the last one known, so that a new one comes out."""

    def keys_of_each_token(self, window: int) -> list[int]:
        return [min(position, window) for position in range(self.before + 1, self.before + self.tokens + 1)]

    @property
    def recomputed(self) -> int:
        return len(range(self.before, min(self.before + self.tokens, self.request.reached)))


class _Engine:
    """One replica in the middle of a replay."""

    def __init__(self, table: StepTable, trace_block_tokens: int) -> None:
        self.table = table
        self.trace_block_tokens = trace_block_tokens
        self.pool = Pool(table.pool.blocks_count)
        self.waiting: deque[_Request] = deque()
        self.running: list[_Request] = []
        self.preempted_now = 0
        self.preempted_since_last_step = 0
        self.prefix_hit_now = 0

    def blocks_missing(self, tokens: int, blocks: list[Block]) -> int:
        return max(0, math.ceil(tokens / self.table.pool.block_tokens) - len(blocks))

    def schedule(self, now_s: float) -> list[_Chunk]:
        self.preempted_now = self.prefix_hit_now = 0
        chunks: list[_Chunk] = []
        budget = self.table.limits.max_batched_tokens
        for request in list(self.running):
            if budget == 0 or request not in self.running:
                break
            if request.last_is_promised:
                continue
            tokens = min(request.known - request.computed, budget)
            missing = self.blocks_missing(request.computed + tokens, request.blocks)
            while missing > self.pool.free_count and request in self.running:
                self.preempt(self.running[-1])
            if request in self.running:
                request.blocks += [self.pool.take() for _ in range(missing)]
                chunks.append(self.compute(request, tokens, is_decode=request.computed >= request.prompt_now))
                budget -= tokens
        while self.waiting and not self.preempted_now and budget > 0 and len(self.running) < self.table.limits.max_running:
            request = self.waiting[0]
            cached = self.cached_beginning(request)
            hit = len(cached) * self.table.pool.block_tokens
            tokens = min(request.known - hit, budget)
            missing = self.blocks_missing(hit + tokens, cached)
            if missing + sum(not block.users for block in cached) > self.pool.free_count:
                break
            self.running.append(self.waiting.popleft())
            self.pool.use_again(cached)
            request.blocks = cached + [self.pool.take() for _ in range(missing)]
            request.computed = hit
            new_hit = len(range(request.reached, hit))
            request.prefix_hit += new_hit
            self.prefix_hit_now += new_hit
            request.prompt_now = request.known
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s
            chunks.append(self.compute(request, tokens, is_decode=False))
            budget -= tokens
        self.preempted_since_last_step += self.preempted_now
        return chunks

    def cached_beginning(self, request: _Request) -> list[Block]:
        """The cached blocks that a request starts from; its last known token is left to compute."""
        if not self.table.limits.prefix_cache:
            return []
        places = range((request.known - 1) // self.table.pool.block_tokens)
        return self.pool.beginning([request.key(place, self.table, self.trace_block_tokens) for place in places])

    def compute(self, request: _Request, tokens: int, *, is_decode: bool) -> _Chunk:
        emits = request.computed + tokens == request.known
        chunk = _Chunk(request=request, before=request.computed, tokens=tokens, is_decode=is_decode, emits=emits)
        if self.table.limits.prefix_cache:
            block = self.table.pool.block_tokens
            for place in range(request.computed // block, (request.computed + tokens) // block):
                self.pool.keep(request.blocks[place], request.key(place, self.table, self.trace_block_tokens))
        request.computed += tokens
        request.promised += emits
        return chunk

    def preempt(self, request: _Request) -> None:
        self.running.remove(request)
        request.reached = max(request.reached, request.computed)
        self.pool.give_back(request.blocks)
        request.computed, request.blocks = 0, []
        request.preemptions += 1
        self.preempted_now += 1
        self.waiting.appendleft(request)

    def finish(self, emitting: list[_Request], end_s: float) -> None:
        for request in emitting:
            request.token_times_s.append(end_s)
            if request.done:
                self.pool.give_back(request.blocks)
                (self.running if request in self.running else self.waiting).remove(request)


def replay_twin(trace: Trace, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> Replay:
    """Return what `replay.execution.engine.replay` returns, and raise what it raises for a trace or a factor."""
    check_arrivals(trace)
    prices = _Prices(table, check_factors(table, kernel_factors))
    engine = _Engine(table, trace_block_tokens(trace) if table.limits.prefix_cache else 1)
    requests = [_Request(row=row) for row in trace.requests.to_pylist()]
    able = [request for request in requests if _can_fit(request.row, table)]
    coming = deque(sorted(able, key=lambda request: float(request.row["arrival_s"])))
    steps: list[dict[str, Any]] = []
    in_flight: deque[tuple[float, list[_Request]]] = deque()
    most_in_flight = 2 if table.limits.async_scheduling else 1
    now_s = 0.0
    while coming or engine.waiting or engine.running:
        if not in_flight and not engine.waiting and not engine.running:
            now_s = max(now_s, coming[0].row["arrival_s"])
        while coming and coming[0].row["arrival_s"] <= now_s:
            engine.waiting.append(coming.popleft())
        chunks = engine.schedule(now_s)
        if chunks:
            step = _counts(chunks, engine)
            step |= prices.price(step)
            start_s = max(now_s, steps[-1]["end_s"] if steps else 0.0)
            step |= {"scheduled_s": now_s, "start_s": start_s, "end_s": start_s + max(step["device_s"], step["host_s"])}
            steps.append(step)
            in_flight.append((step["end_s"], [chunk.request for chunk in chunks if chunk.emits]))
        if not chunks or len(in_flight) == most_in_flight:
            now_s, emitting = in_flight.popleft()
            engine.finish(emitting, now_s)
    rows = [request.result(_can_fit(request.row, table)) for request in requests]
    return Replay(
        requests=pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA),
        steps=pa.Table.from_pylist(steps, schema=STEPS_SCHEMA),
    )


def _can_fit(row: dict[str, Any], table: StepTable) -> bool:
    tokens = row["prompt_tokens"] + row["output_tokens"]
    blocks = math.ceil((tokens - 1) / table.pool.block_tokens)
    return bool(tokens <= table.limits.max_context_tokens and blocks <= table.pool.blocks_count)


def _counts(chunks: list[_Chunk], engine: _Engine) -> dict[str, Any]:
    window = engine.table.limits.attention_window_tokens
    prefills = [chunk for chunk in chunks if not chunk.is_decode]
    decodes = [chunk for chunk in chunks if chunk.is_decode]
    preemptions, engine.preempted_since_last_step = engine.preempted_since_last_step, 0
    return {
        "tokens": sum(chunk.tokens for chunk in chunks),
        "sequences": len(chunks),
        "decode_sequences": len(decodes),
        "decode_context_tokens": sum(sum(chunk.keys_of_each_token(window)) for chunk in decodes),
        "prefill_tokens": sum(chunk.tokens for chunk in prefills),
        "prefill_pairs": sum(sum(chunk.keys_of_each_token(window)) for chunk in prefills),
        "recomputed_tokens": sum(chunk.recomputed for chunk in prefills),
        "running": len(engine.running),
        "waiting": len(engine.waiting),
        "prefix_hit_tokens": engine.prefix_hit_now,
        "kv_blocks": engine.pool.count - engine.pool.free_count,
        "preemptions": preemptions,
        "output_tokens": sum(chunk.emits for chunk in chunks),
    }


class _Prices:
    """Prices one step at a time from the table's own columns."""

    def __init__(self, table: StepTable, factors: Mapping[str, float]) -> None:
        self.table = table
        self.factors = factors
        self.kernels = table.kernels.to_pylist()
        parts = (table.token_terms, table.sequence_terms, table.decode_terms, table.prefill_terms)
        self.column = {name: part[name].to_pylist() for part in parts for name in part.column_names if "." in name}
        self.captured = table.capture["captured_tokens"].to_pylist()
        self.context_knots = sorted(set(table.decode_terms["context_tokens"].to_pylist()))
        self.token_knots, self.keys_knots = (sorted(set(table.prefill_terms[name].to_pylist())) for name in ("tokens", "keys_tokens"))

    def price(self, step: dict[str, Any]) -> dict[str, Any]:
        phase_start = (self.table.limits.max_batched_tokens + 1) * (step["prefill_tokens"] > 0)
        captured = self.captured[phase_start + step["tokens"]]
        row = phase_start + (captured or step["tokens"])
        device_s = self._sum("tokens", lambda name: self._row(name, row))
        device_s += self._sum("sequences", lambda name: self._row(name, step["sequences"]))
        if step["decode_sequences"]:
            device_s += self._sum("decode_attention", lambda name: self._decode(name, step))
        if step["prefill_tokens"]:
            device_s += self._sum("prefill_attention", lambda name: self._prefill(name, step))
        launches = self.table.launches_count + (self.table.prefill_launches_count if step["prefill_tokens"] else 0)
        host_s = self.table.host_graph_launch_s if captured else launches * self.table.host_launch_s
        return {"device_s": device_s, "host_s": host_s, "captured_tokens": captured}

    def _sum(self, axis: str, terms: Any) -> float:
        total_s = 0.0
        for kernel in self.kernels:
            if kernel["axis"] == axis:
                weight = kernel["calls_count"] * self.factors.get(kernel["kernel"], 1.0)
                total_s += weight * _time(terms(kernel["kernel"]), kernel["overlap_exponent"])
        return total_s

    def _row(self, kernel: str, row: int) -> tuple[float, ...]:
        return tuple(self.column[f"{kernel}.{term}"][row] for term in ("launch_s", "compute_s", "memory_s", "sync_s"))

    def _decode(self, kernel: str, step: dict[str, Any]) -> tuple[float, ...]:
        return self._on_line(kernel, step["decode_sequences"], self.context_knots, step["decode_context_tokens"] / step["decode_sequences"])

    def _prefill(self, kernel: str, step: dict[str, Any]) -> tuple[float, ...]:
        keys, tokens, knots = step["prefill_pairs"] / step["prefill_tokens"], step["prefill_tokens"], self.token_knots
        low = min(max(bisect_right(knots, tokens) - 1, 0), max(len(knots) - 2, 0))
        start = self._on_line(kernel, low, self.keys_knots, keys, clipped=False)
        if len(knots) == 1 or tokens <= knots[0]:
            return tuple(max(0.0, a) for a in start)
        end = self._on_line(kernel, low + 1, self.keys_knots, keys, clipped=False)
        share = (tokens - knots[low]) / (knots[low + 1] - knots[low])
        return tuple(max(0.0, a + (b - a) * share) for a, b in zip(start, end, strict=True))

    def _on_line(self, kernel: str, line: int, knots: list[float], place: float, *, clipped: bool = True) -> tuple[float, ...]:
        """Terms on one line of a grid, between the knots around a place on it."""
        low = min(max(bisect_right(knots, place) - 1, 0), max(len(knots) - 2, 0))
        start = self._row(kernel, line * len(knots) + low)
        if len(knots) == 1 or place <= knots[0]:
            return start
        end = self._row(kernel, line * len(knots) + low + 1)
        share = (place - knots[low]) / (knots[low + 1] - knots[low])
        found = tuple(a + (b - a) * share for a, b in zip(start, end, strict=True))
        return tuple(max(0.0, term) for term in found) if clipped else found


def _time(terms: tuple[float, ...], exponent: float) -> float:
    launch_s, compute_s, memory_s, sync_s = terms
    longer, shorter = max(launch_s + compute_s, launch_s + memory_s), min(launch_s + compute_s, launch_s + memory_s)
    if math.isinf(exponent) or longer == 0.0:
        return longer + sync_s
    return float(longer * (1.0 + (shorter / longer) ** exponent) ** (1.0 / exponent) + sync_s)
