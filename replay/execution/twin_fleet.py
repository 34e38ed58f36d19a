"""Replicas of the plain replay, each with its clock, and who sends them requests."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from typing import Any

from replay.execution.twin_engine import Chunk, Engine, Request
from replay.execution.twin_power import Board
from replay.execution.twin_prices import Prices
from replay.provenance import Load


class Replica:
    """One replica: what it has been sent, the steps that it composed, and when it goes on."""

    def __init__(self, engine: Engine, prices: Prices) -> None:
        self.engine, self.prices = engine, prices
        self.board = Board(prices, engine.table.power) if engine.table.power else None
        limits = engine.limits
        self.variants = set(limits.compile_bins[: limits.compiled_at_start])
        self.ready_s = limits.ready_s
        self.most_in_flight = 2 if limits.async_scheduling else limits.inflight_steps
        self.stage_shares = prices.stage_shares() if self.most_in_flight > 1 and not limits.async_scheduling else [1.0]
        self.stages_left_s = [0.0 for _ in self.stage_shares]
        self.coming: deque[Request] = deque()
        self.steps: list[dict[str, Any]] = []
        self.in_flight: deque[tuple[float, list[Request]]] = deque()
        self.ends_next = self.rests = False
        self.next_s = math.inf
        self.outstanding = self.given = 0

    def give(self, request: Request, at_s: float) -> None:
        """Send it a request."""
        request.sent_s, request.turn = at_s, self.given
        self.given += 1
        self.coming.append(request)
        self.outstanding += 1
        if self.rests or self.next_s == math.inf:
            self.next_s = max(self.ready_s, min(self.next_s, at_s))

    def go_on(self) -> list[Request]:
        """Do what comes next, at `next_s`; return the requests that are done with that."""
        now_s, done = self.next_s, []
        if self.ends_next:
            _, emitting = self.in_flight.popleft()
            done = self.engine.finish(emitting, now_s)
            self.outstanding -= len(done)
        self.ends_next = self.rests = False
        if not done:
            self.compose(now_s)
        return done

    def compose(self, now_s: float) -> None:
        """Compose steps until one has to end first, or nothing can run."""
        while True:
            self.next_s = now_s
            while self.coming and self.coming[0].sent_s <= now_s:
                self.engine.waiting.append(self.coming.popleft())
            if self.engine.is_empty and not self.in_flight:
                self.next_s = self.coming[0].sent_s if self.coming else math.inf
                return
            chunks = self.engine.schedule(now_s)
            if chunks:
                self.start(chunks, now_s)
            if self.in_flight and (not chunks or len(self.in_flight) == self.most_in_flight):
                self.next_s, self.ends_next = self.in_flight[0][0], True
                return
            if not chunks:
                arrives_s = self.coming[0].sent_s if self.coming else math.inf
                self.next_s, self.rests = min(arrives_s, self.engine.batch_starts_at(now_s)), True
                assert self.next_s > now_s, "nothing can run"
                return

    def start(self, chunks: list[Chunk], now_s: float) -> None:
        """Put a step behind those in flight."""
        step = _counts(chunks, self.engine)
        compile_s, eager = self.variant(step["tokens"])
        start_s, idle_since_s = max(now_s, self.stages_left_s[0]), self.stages_left_s[0]
        step |= {"compile_s": compile_s, "scheduled_s": now_s, "start_s": start_s}
        step |= self.board.run(step, start_s - idle_since_s, eager=eager) if self.board else self.prices.price(step, eager=eager)
        at_s, duration_s = start_s + compile_s, self.duration_s(step)
        for stage, share in enumerate(self.stage_shares):
            at_s = self.stages_left_s[stage] = max(at_s, self.stages_left_s[stage]) + duration_s * share
        step["end_s"] = at_s
        self.steps.append(step)
        self.in_flight.append((step["end_s"], [chunk.request for chunk in chunks if chunk.emits]))

    def duration_s(self, step: dict[str, Any]) -> float:
        """How long a step takes."""
        both = (float(step["device_s"]), float(step["host_s"]))
        return max(both) if self.engine.limits.host_overlap else sum(both)

    def variant(self, tokens: int) -> tuple[float, bool]:
        """How long a step waits for the variant that it needs, and whether it does without, for there may be no more."""
        limits = self.engine.limits
        needed = next((size for size in limits.compile_bins if size >= tokens), None)
        if needed is None or needed in self.variants:
            return 0.0, False
        if len(self.variants) == limits.compile_max_variants:
            return 0.0, True
        self.variants.add(needed)
        return limits.compile_variant_s, False


class Senders:
    """Clients and sessions: when each request is sent, and where to."""

    def __init__(self, requests: list[Request], replicas: list[Replica], load: Load, *, closed: bool) -> None:
        self.replicas, self.load, self.closed = replicas, load, closed
        self.place = {request: place for place, request in enumerate(requests)}
        in_order = sorted(requests, key=lambda request: request.due_s)
        self.following: dict[Request, Request] = {}
        self.due = list(in_order)
        if load.sessions:
            last: dict[str, Request] = {}
            for request in in_order:
                session = request.row["session_id"]
                if session in last:
                    self.following[last[session]] = request
                    self.due.remove(request)
                if session is not None:
                    last[session] = request
        self.clients = [0.0] * (load.concurrency or 0)
        self.links_s: dict[tuple[str, int | None], float] = defaultdict(float)
        self.turn = self.draws = 0

    def run(self) -> None:
        """Let everything happen, in order of time."""
        while True:
            request = min(self.due, key=lambda request: (request.due_s, self.place[request]), default=None)
            at_s = math.inf if request is None else self.sent_at(request)
            replica = min(self.replicas, key=lambda replica: replica.next_s)
            if replica.next_s < at_s:
                for done in replica.go_on():
                    self.hear(done, replica)
            elif request is None or at_s == math.inf:
                return
            else:
                self.send(request, at_s)

    def sent_at(self, request: Request) -> float:
        """When a request can be sent, as far as is known."""
        if not self.load.concurrency:
            return request.due_s
        return max(request.due_s, self.clients[0]) if self.clients else math.inf

    def send(self, request: Request, at_s: float) -> None:
        """Send a request."""
        self.due.remove(request)
        if self.load.concurrency:
            heapq.heappop(self.clients)
        if self.closed:
            request.due_s = at_s
        request.replica = self.route(request)
        self.replicas[request.replica].give(request, self.received_at(request, at_s))

    def received_at(self, request: Request, at_s: float) -> float:
        """When what was computed of a request elsewhere has come over the links of sender and receiver, one transfer after another."""
        if request.sending is None:
            return at_s
        sender, send_s = request.sending
        both = ("from", sender), ("to", request.replica)
        end_s = max(at_s, *(self.links_s[link] for link in both)) + send_s
        for link in both:
            self.links_s[link] = end_s
        return end_s

    def hear(self, request: Request, replica: Replica) -> None:
        """Get the last token of a request."""
        at_s = request.token_times_s[-1] + self.load.think_s
        replica.next_s = request.token_times_s[-1]
        if self.load.concurrency:
            heapq.heappush(self.clients, at_s)
        if request in self.following:
            following = self.following[request]
            following.due_s = max(following.due_s, at_s)
            self.due.append(following)

    def route(self, request: Request) -> int:
        """The number of the replica that gets a request."""
        routing, loads = self.replicas[0].engine.limits.routing, [replica.outstanding for replica in self.replicas]
        least = loads.index(min(loads))
        if routing == "round_robin":
            self.turn += 1
            return (self.turn - 1) % len(loads)
        if routing == "least_loaded" or len(loads) == 1:
            return least
        if routing == "power_of_two":
            one = draw(self.draws + 1) % len(loads)
            other = (one + 1 + draw(self.draws + 2) % (len(loads) - 1)) % len(loads)
            self.draws += 2
            return other if loads[other] < loads[one] else one
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            return least
        block_tokens = self.replicas[0].engine.table.pool.block_tokens
        cached = [len(replica.engine.cached_beginning(request)) * block_tokens for replica in self.replicas]
        best = max(range(len(loads)), key=lambda number: (cached[number], -loads[number], -number))
        return best if cached[best] > 0.3 * request.row["prompt_tokens"] else least


def draw(number: int) -> int:
    """62 pseudo-random bits for a number, by SplitMix64's output function."""
    bits = number * 0x9E3779B97F4A7C15 % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return (bits ^ (bits >> 31)) >> 2


def _counts(chunks: list[Chunk], engine: Engine) -> dict[str, Any]:
    window = engine.table.limits.attention_window_tokens
    prefills = [chunk for chunk in chunks if not chunk.is_decode]
    decodes = [chunk for chunk in chunks if chunk.is_decode]
    preemptions, engine.preempted_since_last_step = engine.preempted_since_last_step, 0
    swapped, engine.swapped_since_last_step = engine.swapped_since_last_step, 0
    return {
        "tokens": sum(chunk.tokens for chunk in chunks),
        "sequences": len(chunks),
        "decode_sequences": len(decodes),
        "decode_context_tokens": sum(sum(chunk.keys_of_each_token(window)) for chunk in decodes),
        "prefill_tokens": sum(chunk.tokens for chunk in prefills),
        "prefill_pairs": sum(sum(chunk.keys_of_each_token(window)) for chunk in prefills),
        "recomputed_tokens": sum(chunk.recomputed for chunk in prefills),
        "running": len(engine.running),
        "waiting": len(engine.preempted) + len(engine.waiting),
        "prefix_hit_tokens": engine.prefix_hit_now,
        "kv_blocks": engine.pool.count - engine.pool.free_count,
        "preemptions": preemptions,
        "swapped_blocks": swapped,
        "output_tokens": sum(chunk.emits for chunk in chunks),
    }
