"""Costs of attention of a kernel plan, by the calibrated families of a device.

A step may hold several prompts and many decoding sequences; what the step table knows of them are sums. They are priced as
equal sequences: decoding ones of the mean context; prompts as one chunk behind a prefix where a query sees more keys than a
prompt of that many tokens would give it, else as several prompts of the length that gives it as many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.lowering.kernel_plan import FORMAT_BYTES, UNFUSED_KERNELS, Kernel
from replay.tiling.bins import AttentionBin, attention_resources
from replay.tiling.families.decode_attention import SPLITS, DecodeAttention, decode_shapes
from replay.tiling.families.decode_paths import FLASH_MLA, PATHS, decode_paths
from replay.tiling.families.family import Shapes
from replay.tiling.families.prefill_attention import FULL_WINDOW, PrefillAttention, prefill_path, prefill_shapes
from replay.tiling.families.tile_resources import spill_s
from replay.tiling.library import UNCALIBRATED_ERROR_RATIO, Cost, KernelLibrary, KernelModel, Timed, in_order
from replay.tiling.terms import Array

SCORE_BYTES = 2.0 * (4 + 2)
"""Unfused attention per query head and (query, key) pair: 32-bit scores and 16-bit probabilities, each written and read."""
LATENT_STAND_INS = ("flash3_captured", "flash3", "trtllm_gen", "flashinfer", "flash2", "xqa")
"""Decode kernels whose floor, rates and overlap stand for those of kernels over latents, of which none is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPricer:
    """Prices one attention kernel where one tile and split hold."""

    kernel: Kernel
    bin_: AttentionBin
    window: float
    """Keys a query sees at most; infinite for full attention."""
    library: KernelLibrary
    stack: str

    def prefill(self, tokens: Array, keys: Array) -> Cost:
        """Return the cost of one call for steps with `tokens` >= 1 prompt tokens that see `keys` keys on average [points]."""
        path = prefill_path(self.stack, self._cache, self.library.device)
        kernels = dict.fromkeys((path.kernel(windowed=self.window < np.inf), path.name))
        variants = tuple(variant for kernel in kernels for variant in self._variants(kernel))
        found = self.library.find("prefill_attention", variants, self.stack)
        timed = self._timed(PrefillAttention(path=path), variants[0])
        if self.bin_.tile is not None:
            path = replace(path, tile_rows=float(self.bin_.tile[0]), block_keys=float(self.bin_.tile[1]))
        alike = self.kernel.attention.value_size == self.kernel.attention.head_size  # kernels are timed with values as wide as keys
        model = self._trusted(self.library.model(PrefillAttention(path=path), found, wanted=variants[0], exact=alike, timed=timed))
        sequences, prompt, prefix = equal_prompts(tokens, keys, self.window)
        lengths = {"sequences": sequences, "prompt_tokens": prompt, "prefix_tokens": prefix}
        cost = self._priced(model, prefill_shapes({**lengths, **self._sizes}), tokens * keys)
        if self.bin_.spill is None or self.bin_.tile is None:
            return cost
        # Every block of keys of every tile reads and writes what does not fit the registers.
        blocks = self.kernel.attention.query_heads * tokens * keys / (self.bin_.tile[0] * self.bin_.tile[1])
        spilled = attention_resources(self.bin_.tile, self.kernel, self.library.device).spilled_bytes
        steps, device = blocks / self.library.device.units_count, self.library.device
        spilling_s = spill_s(spilled, steps, device, model.parameters["dram_efficiency_ratio"])
        return replace(cost, terms=cost.terms.with_memory_after(spilling_s, 0.0, cost.overlap_exponent))

    def decode(self, sequences: Array, context: Array) -> Cost:
        """Return the cost of one call for `sequences` >= 1 sequences of the mean context `context` [points]."""
        keys = np.clip(context, 1.0, self.window)
        counts = decode_shapes({"sequences": sequences, "context_tokens": np.maximum(context, 1.0), **self._sizes})
        names = self._decode_names(counts)
        costs, places = [], []
        for name in dict.fromkeys(names.tolist()):
            rows = np.flatnonzero(names == name)
            family_model, block_keys = self._decode_model(name)
            some = {column: values[rows] for column, values in counts.items()}
            if self.bin_.split is not None:
                some[SPLITS] = np.clip(float(self.bin_.split), 1.0, np.maximum(np.ceil(keys[rows] / block_keys), 1.0))
            costs.append(self._priced(family_model, some, sequences[rows] * keys[rows]))
            places.append(rows)
        return in_order(costs, places)

    def tile(self, rows: int, context: int) -> tuple[tuple[int, int], int]:
        """Return (query rows and keys of a tile, parts that the keys are split into) for some prefill tokens or decode sequences."""
        if self.kernel.phase == "prefill":
            path = prefill_path(self.stack, self._cache, self.library.device)
            return self.bin_.tile or (int(path.tile_rows), int(path.block_keys)), 1
        sizes = {"sequences": np.array([float(rows)]), "context_tokens": np.array([max(context, 1.0)]), **self._sizes}
        counts = decode_shapes(sizes)
        model, block_keys = self._decode_model(str(self._decode_names(counts)[0]))
        family = model.family
        assert isinstance(family, DecodeAttention)
        group = int(min(np.ceil(counts["query_heads"] / counts["kv_heads"])[0], family.path.group_rows))
        split = self.bin_.split or int(family.splits(counts)[0])
        return self.bin_.tile or (group, block_keys), split

    def _decode_names(self, counts: Shapes) -> npt.NDArray[np.str_]:
        """Return the decode kernel that runs for each shape [points]."""
        keys = np.clip(counts["context_tokens"], 1.0, self.window)
        if self.kernel.attention.values_in_keys:
            return np.full(len(keys), FLASH_MLA.name)
        heads = {"query_heads": counts["query_heads"], "kv_heads": counts["kv_heads"], "head_sizes": counts["head_size"]}
        return decode_paths(self.stack, self._cache, self.library.device, sequences=counts["sequences"], keys=keys, **heads)

    def _decode_model(self, name: str) -> tuple[KernelModel, int]:
        """Return the model of a decode kernel, and the keys of its smallest block."""
        stand_ins = LATENT_STAND_INS if name == FLASH_MLA.name else ()
        variants = tuple(variant for kernel in (name, *stand_ins) for variant in self._variants(kernel))
        found = self.library.find("decode_attention", variants, self.stack)
        kv_bytes = FORMAT_BYTES[self.kernel.kv_format]
        family = DecodeAttention(path=PATHS[name], kv_bytes=kv_bytes, planned_units=self.library.units_count(found))
        timed = self._timed(family, variants[0])
        if self.bin_.tile is not None:
            family = replace(family, path=replace(family.path, block_keys=(self.bin_.tile[1],) * 3))
        return self._trusted(self.library.model(family, found, wanted=variants[0], timed=timed)), min(family.path.block_keys)

    def _timed(self, family: DecodeAttention | PrefillAttention, variant: str) -> Timed | None:
        """Return the timings of a kernel, which took the tiles and splits that are its own."""
        own = self.bin_.tile is None and self.bin_.split is None
        return Timed.of(self.library.timings(family.name, (variant,), self.stack, by_format=True), family=family, exact=own)

    def _trusted(self, model: KernelModel) -> KernelModel:
        """Return a model with the error of no calibration where another kind of kernel stands in: keys wider than values."""
        alike = self.kernel.attention.value_size == self.kernel.attention.head_size
        return model if alike or model.source != "datasheet" else replace(model, error_ratio=UNCALIBRATED_ERROR_RATIO)

    def _priced(self, model: KernelModel, shapes: Shapes, pairs: Array) -> Cost:
        """Return the cost of the kernel, or of three that pass scores and probabilities through memory: `pairs` of them a head [rows]."""
        cost = model.cost(shapes, self.library.device)
        if self.kernel.attention_backend != "unfused":
            return cost
        moved = SCORE_BYTES * self.kernel.attention.query_heads * pairs
        rate = model.parameters["dram_efficiency_ratio"] * self.library.device.memory_bytes_per_s
        terms = replace(
            cost.terms,
            memory_s=cost.terms.memory_s + moved / rate,
            launch_s=cost.terms.launch_s + (UNFUSED_KERNELS - 1) * model.parameters["floor_s"],
            bytes=cost.terms.bytes + moved,
        )
        return replace(cost.unmeasured(terms), source="datasheet", error_ratio=UNCALIBRATED_ERROR_RATIO)  # none is timed

    @property
    def _sizes(self) -> dict[str, Array]:
        shape = self.kernel.attention
        sizes = {
            "query_heads": shape.query_heads,
            "kv_heads": shape.kv_heads,
            "head_size": shape.head_size,
            "value_size": shape.value_size,
        }
        return {name: np.array(float(size)) for name, size in sizes.items()} | {"window_tokens": np.array(min(self.window, FULL_WINDOW))}

    @property
    def _cache(self) -> str:
        return "fp8" if FORMAT_BYTES[self.kernel.kv_format] < FORMAT_BYTES["bf16"] else "bf16"

    def _variants(self, kernel_name: str) -> tuple[str, ...]:
        """Return the calibrations to look for: products in 16 bit, the cache's format as it is, then the other one."""
        formats = "bf16" if self._cache == "bf16" else f"bf16-{self._cache}kv"
        return tuple(dict.fromkeys((f"{formats}-{kernel_name}", f"bf16-{kernel_name}")))


def equal_prompts(tokens: Array, keys: Array, window: float) -> tuple[Array, Array, Array]:
    """Return (sequences, prompt tokens of each, cached tokens before each) [points] of equal prompts with those sums.

    Prompts of p tokens see (p + 1) / 2 keys on average without a window. Behind a prefix, the prefix is looked for at which
    they see `keys`; with a window it cannot be told beyond the one from which all see the whole window.
    """
    least = np.maximum(keys, 1.0)
    short = least < (tokens + 1.0) / 2.0
    prompt = np.where(short, np.maximum(2.0 * least - 1.0, 1.0), tokens)
    prefix = np.where(short, 0.0, least - (tokens + 1.0) / 2.0)
    if window < np.inf:
        prefix = _windowed_prefix(tokens, least, window)
        short = (prefix <= 0) & (least < _mean_keys(tokens, np.zeros(len(tokens)), window))
        prompt = np.where(short, np.minimum(np.maximum(2.0 * least - 1.0, 1.0), tokens), tokens)
    return tokens / prompt, prompt, prefix


def _windowed_prefix(tokens: Array, keys: Array, window: float) -> Array:
    """Return the prefix [points] behind which a chunk sees `keys` keys on average, by bisection (the mean rises with it)."""
    low, high = np.zeros(len(tokens)), np.full(len(tokens), window)
    for _ in range(48):
        middle = (low + high) / 2.0
        enough = _mean_keys(tokens, middle, window) >= keys
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.where(low > 0, high, 0.0))


def _mean_keys(tokens: Array, prefix: Array, window: float) -> Array:
    """Return the keys that a query of a chunk sees on average [points]."""
    rising = np.clip(window - prefix, 0.0, tokens)
    seen = rising * prefix + rising * (rising + 1.0) / 2.0 + (tokens - rising) * window
    return np.asarray(seen / tokens)
