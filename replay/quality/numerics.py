"""What a mapping's knobs mean for numbers: one setting for each aspect of the arithmetic and layer type, so that each can be undone alone.

Where a format leaves open how its scales are shared, it has the form that servers use it in: fp8 weights have one scale a tensor and
activations one a token; int8 weights one a row; int4 weights an fp16 scale for 128 columns; fp8_block 128 x 128 weights and 128 columns of
activations; nvfp4 an fp8 scale for 16 columns. `formats.weight_scales` says otherwise. The key-value cache is cast without a scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from replay.quality.elements import ELEMENTS, Element
from replay.quality.products import WIDE, Accumulation
from replay.quality.tensor_formats import TensorFormat
from replay.specs.knobs import KNOBS
from replay.specs.mapping import MappingSpec

LAYERS = ("qkv", "output_proj", "mlp", "lm_head")
"""Layer types whose products have formats of their own; a recurrent model's cells are `mlp`."""
_E4M3, _FP4 = ELEMENTS["fp8_e4m3"], ELEMENTS["fp4_e2m1"]
PLAIN = {name: TensorFormat(element=ELEMENTS[name]) for name in ("bf16", "fp16")}
WEIGHTS = {
    **PLAIN,
    "fp8": TensorFormat(element=_E4M3, shared_by="tensor"),
    "fp8_block": TensorFormat(element=_E4M3, shared_by="block", size=128),
    "int8": TensorFormat(element=ELEMENTS["int8"], shared_by="channel"),
    "int4": TensorFormat(element=ELEMENTS["int4"], shared_by="group", size=128, scale="fp16"),
    "nvfp4": TensorFormat(element=_FP4, shared_by="group", size=16, scale="nvfp4"),
}
ACTIVATIONS = {
    **PLAIN,
    "fp8": TensorFormat(element=_E4M3, shared_by="channel"),
    "fp8_block": TensorFormat(element=_E4M3, shared_by="group", size=128),
    "int8": TensorFormat(element=ELEMENTS["int8"], shared_by="channel"),
    "nvfp4": TensorFormat(element=_FP4, shared_by="group", size=16, scale="nvfp4"),
}
"""A row of activations is a token."""
CACHE = {**PLAIN, "fp8": TensorFormat(element=_E4M3)}
KNOB_OF = {
    "weights": "formats.weights",
    "weight_scales": "formats.weight_scales",
    "sparsity": "formats.sparsity",
    "activations": "formats.activations",
    "stream": "formats.activations",
    "accumulation": "formats.accumulation",
    "accumulation_interval": "formats.accumulation_interval",
    "split_k": "gemm.split_k",
    "cache": "formats.kv",
    "kv_split": "attention.kv_split",
}
"""Aspect of the arithmetic -> the knob that sets it."""
_OF_PRODUCTS = ("weights", "weight_scales", "sparsity", "activations", "accumulation", "accumulation_interval", "split_k")
Place = tuple[str, str]
"""An aspect of the arithmetic and its layer type; `attention` for the cache and its parts, `all` for what passes between products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """How a model computes: `exact()` in float32 with nothing rounded further, or `of` a mapping."""

    values: Mapping[Place, object]
    """The knob's value at each place."""
    sixteen_bit: str
    """What `model` means for activations and the cache; fp32: not rounded."""
    mapping: MappingSpec | None = None
    """Where knobs that depend on the rows of a step are looked up."""

    @classmethod
    def exact(cls) -> Numerics:
        """Return the arithmetic of the checkpoint's own weights in float32."""
        values: dict[Place, object] = {("stream", "all"): "fp32", ("cache", "attention"): "fp32", ("kv_split", "attention"): 1}
        for aspect in _OF_PRODUCTS:
            value = 1 if aspect == "split_k" else "fp32" if aspect == "activations" else KNOBS[KNOB_OF[aspect]].default
            values |= {(aspect, layer): value for layer in LAYERS}
        return cls(values=values, sixteen_bit="fp32")

    @classmethod
    def of(cls, mapping: MappingSpec, sixteen_bit: str) -> Numerics:
        """Return how a mapping computes on a checkpoint whose own 16-bit format is this (`fp32` where it has none)."""
        values: dict[Place, object] = {("cache", "attention"): mapping.value("formats.kv")}
        for aspect in _OF_PRODUCTS:
            phase = "prefill" if aspect == "split_k" else None
            values |= {(aspect, layer): mapping.value(KNOB_OF[aspect], layer=layer, phase=phase) for layer in LAYERS}
        stated = mapping.value("formats.activations")
        values["stream", "all"] = stated if stated in PLAIN else sixteen_bit
        values["kv_split", "attention"] = mapping.value("attention.kv_split")
        return cls(values=values, sixteen_bit=sixteen_bit, mapping=mapping)

    @property
    def stream(self) -> Element | None:
        """What values between products are rounded to; None: not at all."""
        form = PLAIN.get(str(self.values["stream", "all"]))
        return None if form is None else form.element

    def weights(self, layer: str) -> TensorFormat | None:
        """Return the format of a layer type's weights; None: as in the checkpoint."""
        form = WEIGHTS.get(str(self.values["weights", layer]))
        scales = str(self.values["weight_scales", layer])
        return form if form is None or form.shared_by == "none" or scales == "format" else _rescaled(form, scales)

    def is_sparse(self, layer: str) -> bool:
        """Return whether a layer type's weights are cut to two in four."""
        return self.values["sparsity", layer] == "2:4"

    def activations(self, layer: str) -> TensorFormat | None:
        """Return the format in which activations reach a layer type's products; None: as they come."""
        stated = str(self.values["activations", layer])
        form = ACTIVATIONS.get(self.sixteen_bit if stated == "model" else stated)
        return None if form is not None and form == PLAIN.get(str(self.values["stream", "all"])) else form

    def cache(self) -> TensorFormat | None:
        """Return the format of the key-value cache; None: as keys and values come."""
        stated = str(self.values["cache", "attention"])
        form = CACHE.get(self.sixteen_bit if stated == "model" else stated)
        return None if form is not None and form == PLAIN.get(str(self.values["stream", "all"])) else form

    def accumulation(self, layer: str) -> Accumulation:
        """Return how a layer type's sums are kept."""
        interval = self.values["accumulation_interval", layer]
        width = str(self.values["accumulation", layer])
        if width == "fp32":
            return WIDE
        return Accumulation(width=width, interval=interval if isinstance(interval, int) else None)

    def parts(self, aspect: str, layer: str, *, phase: str, rows: int) -> int:
        """Return in how many parts sums are taken (`split_k`, `kv_split`) in a step of so many rows; 1 where the mapping leaves it open."""
        stated = self.values[aspect, layer]
        if self.mapping is not None and stated == self._looked_up(aspect, layer, "prefill", None):
            stated = self._looked_up(aspect, layer, phase, rows)
        return stated if isinstance(stated, int) else 1

    def with_order(self, parts: int) -> Numerics:
        """Return the same with sums taken in this many parts: what only another order changes."""
        aspects = [("split_k", layer) for layer in LAYERS] + [("kv_split", "attention")]
        return replace(self, values={**self.values, **dict.fromkeys(aspects, parts)}, mapping=None)

    def with_places_of(self, other: Numerics, places: Iterable[Place]) -> Numerics:
        """Return the same with these places as another has them; what passes between products takes along what reaches them."""
        wanted = set(places)
        if ("stream", "all") in wanted:
            wanted |= {("activations", layer) for layer in LAYERS}
        return replace(self, values={**self.values, **{place: other._stated(place) for place in wanted}})

    def effects(self) -> tuple[object, ...]:
        """Return what decides the numbers; the same for two that compute alike."""
        products = [(self.weights(layer), self.is_sparse(layer), self.activations(layer), self.accumulation(layer)) for layer in LAYERS]
        orders = [
            (place, value) for place, value in self.values.items() if place[0] in ("split_k", "kv_split") and value not in (1, "auto")
        ]
        return (self.stream, self.cache(), *products, *sorted(orders, key=str))

    def _stated(self, place: Place) -> object:
        """Return a place's value as it means the same in other numerics: `model` by its format."""
        value = self.values[place]
        return self.sixteen_bit if value == "model" and place[0] in ("activations", "cache") else value

    def _looked_up(self, aspect: str, layer: str, phase: str, rows: int | None) -> object:
        assert self.mapping is not None
        if aspect == "kv_split":
            return self.mapping.value(KNOB_OF[aspect], rows=rows)
        return self.mapping.value(KNOB_OF[aspect], layer=layer, phase=phase, rows=rows)


def differing(candidate: Numerics, baseline: Numerics) -> Iterator[Place]:
    """Yield the places that change what the candidate computes when they are as the baseline has them."""
    for place in candidate.values:
        if (
            candidate._stated(place) != baseline._stated(place)
            and candidate.with_places_of(baseline, [place]).effects() != candidate.effects()
        ):
            yield place


def _rescaled(form: TensorFormat, scales: str) -> TensorFormat:
    """Return a format with its scales shared as a knob says: `tensor`, `channel`, `group32`, `block128`, `mx32`."""
    kind = scales.rstrip("0123456789")
    size = int(scales[len(kind) :] or 0)
    if kind == "mx":
        return replace(form, shared_by="group", size=size, scale="mx")
    return replace(form, shared_by=kind, size=size, scale="fp16" if kind == "group" else "fp32")
