"""A server in its steady state: which steps it runs while a fixed number of clients each wait for one request.

With C requests in the server, prompts of I tokens, outputs of O and a budget of B tokens a step, each request decodes for O - 1 steps.
In that time every other one also needs its prompt read once, so a step must read ``D I / (O - 1)`` prompt tokens for its D decoding
sequences. A prompt is read in one step where the budget allows, in chunks of what the budget leaves otherwise::

    held    = cache tokens / (I + O / 2)               sequences that the key-value cache holds at their mean length
    D       = min(C, held), and where prompts and decoding share steps at most B (O - 1) / (I + O - 1)
    needed  = D I / (O - 1)                             prompt tokens a step
    chunk   = needed, at least min(I, room), at most room;    room = B - D where they share steps, else B
    share   = needed / chunk                            of the steps that read prompts
    TPOT    = share T(chunk, D) + (1 - share) T(0, D)   where they share steps (vLLM, TensorRT-LLM)
    TPOT    = T(0, D) + share T(chunk, 0)               where a step reads prompts or decodes (SGLang)
    later   = T(0, D) + ceil(I / room) T(min(I, room), D or 0)      the step that runs on arrival, then one's own prompt
    first   = mean over i = 1..C of ceil(i I / room) T(min(C I, room), D / 2 or 0)      all clients ask at once, and are read in turn
    TTFT    = (first + (ROUNDS - 1) later) / ROUNDS

Contexts are at their mean, I + O / 2; keys of a prompt's tokens too, (I + 1) / 2. A client that keeps C requests in the server sends C
at its start and one whenever one is done: each client's first request stands in a queue of all, the others hardly in any. TTFT is a
forecast only where no other queue decides it: the cache holds all requests, and steps with prompts fill at most QUEUE_RATIO of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.calibration.priced_steps import StepShapes
from replay.calibration.whole import Prediction
from replay.tiling.library import Source
from replay.tiling.terms import Array

QUEUE_RATIO = 0.5
"""Beyond it a prompt waits for others as long as for itself (mean wait of M/D/1: half a service time at half load)."""

ROUNDS = 10
"""Requests of each client: benchmarks of servers commonly send ten times as many prompts as they keep in flight (InferenceMAX). Tables do
not say it, and it is not fitted to them."""

PriceSteps = Callable[[StepShapes], Prediction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What clients ask for [cases]."""

    prompt_tokens: Array
    output_tokens: Array
    """At least 2."""
    concurrency: Array

    @property
    def decode_steps(self) -> Array:
        """Steps that a request decodes for [cases]."""
        return self.output_tokens - 1.0

    @property
    def mean_context(self) -> Array:
        """Mean tokens of a decoding sequence [cases]."""
        return self.prompt_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Times of a steady state [cases]."""

    ttft_s: Array
    tpot_s: Array
    cache_decides: npt.NDArray[np.bool_]
    """Whether the cache holds fewer sequences than there are requests."""
    prompts_decide: npt.NDArray[np.bool_]
    """Whether steps with prompts fill more than QUEUE_RATIO of the time."""
    source: Source


def serve(load: Load, price: PriceSteps, *, budget_tokens: int, cache_tokens: int, mixes: bool) -> Served:
    """Return the times of a steady state; `mixes` says whether a step reads prompts and decodes."""
    steps, prompt = load.decode_steps, load.prompt_tokens
    held = cache_tokens / load.mean_context
    decoding = np.minimum(load.concurrency, held)
    if mixes:
        decoding = np.minimum(decoding, budget_tokens * steps / (prompt + steps))
    decoding = np.maximum(np.round(decoding), 1.0)
    room = np.maximum(budget_tokens - decoding, 1.0) if mixes else np.full(len(prompt), float(budget_tokens))
    needed = decoding * prompt / steps
    chunk = np.clip(np.round(needed), np.minimum(prompt, room), room)
    share = np.minimum(needed / chunk, 1.0 if mixes else np.inf)
    beside = decoding if mixes else np.zeros(len(prompt))
    own, crowd = np.minimum(prompt, room), np.minimum(load.concurrency * prompt, room)
    prefill = np.stack([np.zeros(len(prompt)), chunk, own, crowd])
    found = price(_shapes(load, prefill, np.stack([decoding, beside, beside, np.round(beside / 2.0)])))
    decode_s, chunk_s, own_s, crowd_s = found.seconds.reshape(4, -1)
    tpot_s = share * chunk_s + ((1.0 - share) if mixes else 1.0) * decode_s
    later_s = decode_s + np.ceil(prompt / room) * own_s
    first_s = _mean_place(load.concurrency, prompt, room) * crowd_s
    return Served(
        ttft_s=(first_s + (ROUNDS - 1) * later_s) / ROUNDS,
        tpot_s=tpot_s,
        cache_decides=held < load.concurrency,
        prompts_decide=share * chunk_s > QUEUE_RATIO * tpot_s,
        source=found.source,
    )


def _mean_place(concurrency: Array, prompt: Array, room: Array) -> Array:
    """Return how many full steps it takes in the mean until a prompt is read, of as many as there are clients [cases]."""
    cases = zip(concurrency, prompt, room, strict=True)
    return np.array([np.ceil(np.arange(1, count + 1) * tokens / step).mean() for count, tokens, step in cases])


def _shapes(load: Load, prefill_tokens: Array, decode_sequences: Array) -> StepShapes:
    """Return steps [kinds x cases] with those tokens and sequences [kinds, cases], at mean context and keys."""
    like = np.ones_like(prefill_tokens)
    return StepShapes(
        decode_sequences=decode_sequences.ravel().astype(np.int64),
        context_tokens=(like * load.mean_context).ravel(),
        prefill_tokens=prefill_tokens.ravel().astype(np.int64),
        keys_tokens=(like * (load.prompt_tokens + 1.0) / 2.0).ravel(),
        prompts=np.ceil(prefill_tokens / load.prompt_tokens).ravel().astype(np.int64),
    )
