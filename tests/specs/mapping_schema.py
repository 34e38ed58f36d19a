"""Schema of the mapping file as the table of knobs implies it; run this file to rewrite ``schemas/mapping.v1.schema.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replay.documents import write_json
from replay.specs.knobs import KNOBS, TABLES, KnobDefinition

SCHEMA_PATH = Path(__file__).resolve().parents[2] / "schemas" / "mapping.v1.schema.json"

SECTIONS = {
    "kernels": "Which timed kernels run.",
    "formats": "Number formats of weights, activations and the key-value cache.",
    "gemm": "Matrix multiplies: back end and tiles.",
    "attention": "Attention kernels: back end and tiles.",
    "fusion": "Which operators form one kernel.",
    "layout": "Layout of tensors between kernels.",
    "placement": "Where data lives.",
    "kv": "Key-value cache.",
    "parallelism": "How the model is spread over accelerators.",
    "all_reduce": "Collective that joins tensor-parallel ranks.",
    "graph": "Captured graphs.",
    "power": "Power and clock of each accelerator.",
    "batching": "Continuous batching and admission.",
    "host": "Host work of a step.",
    "compile": "Kernels that are compiled when they are needed.",
    "fleet": "Replicas of the server and who gets a request.",
}


def mapping_schema() -> dict[str, Any]:
    """Return the schema."""
    sections = {name: _section(name, [knob for knob in KNOBS.values() if knob.name.split(".")[0] == name]) for name in SECTIONS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://replay-gate.dev/schemas/mapping.v1.schema.json",
        "title": "Mapping",
        "description": (
            "How a model's operators become kernels and how requests are batched. Every key is a knob; what is not set has its default. "
            'A key may be narrowed to part of the work with a scope, in quotes: "tile@mlp.decode[rows<=16,chip=h100-sxm]". '
            "The narrowest setting that covers a place wins, wherever it stands in the file."
        ),
        "type": "object",
        "additionalProperties": False,
        "required": ["name"],
        "properties": {
            "name": {"description": "Label of this mapping; it does not count for comparisons.", "type": "string", "minLength": 1},
            **sections,
        },
    }


def _section(name: str, knobs: list[KnobDefinition]) -> dict[str, Any]:
    return {
        "description": SECTIONS[name],
        "type": "object",
        "additionalProperties": False,
        "properties": {_key(knob): _knob(knob) for knob in knobs},
        "patternProperties": {f"^{_key(knob)}@{_scope(knob)}$": _value(knob.values) for knob in knobs},
    }


def _key(knob: KnobDefinition) -> str:
    return knob.name.split(".", 1)[1]


def _knob(knob: KnobDefinition) -> dict[str, Any]:
    return {
        "description": knob.meaning[0].upper() + knob.meaning[1:] + ".",
        "default": list(knob.default) if isinstance(knob.default, tuple) else knob.default,
        **_value(knob.values),
        "x-stage": knob.stage,
        "x-revert-cost": knob.revert_cost,
        "x-reported-as": knob.reported_as,
        "x-scope": {"layers": list(knob.layers), "phase": knob.phases, "rows": knob.rows, "chip": True},
    }


def _scope(knob: KnobDefinition) -> str:
    """Return the pattern of the scopes a knob takes: layer and phase in either order, then bounds."""
    layer, phase = "|".join(knob.layers), "prefill|decode" if knob.phases else ""
    never = "(?!lm_head\\.prefill|prefill\\.lm_head)" if "lm_head" in knob.layers and knob.phases else ""
    place = f"{never}(?:(?:{layer})(?:\\.(?:{phase}))?|(?:{phase})(?:\\.(?:{layer}))?)" if layer and phase else f"(?:{layer or phase})"
    bound = "(?:rows(?:<=|>=|<|>)[0-9]+|chip=[a-z0-9.-]+)" if knob.rows else "chip=[a-z0-9.-]+"
    bounds = f"\\[ *{bound} *(?:, *{bound} *)*\\]"
    return f"(?:{place}(?:{bounds})?|{bounds})" if layer or phase else bounds


def _value(values: str) -> dict[str, Any]:
    if values == "bool":
        return {"type": "boolean"}
    if values == "ratio":
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    if values.startswith("number:"):
        bounds, _, word = values[7:].partition("|")
        low, high = (float(bound) for bound in bounds.split(".."))
        real = {"type": "number", "minimum": low, "maximum": high}
        return {"anyOf": [real, {"const": word}]} if word else real
    if values.startswith("int:"):
        bounds, _, word = values[4:].partition("|")
        least, most = (int(bound) for bound in bounds.split(".."))
        number = {"type": "integer", "minimum": least, "maximum": most}
        return {"anyOf": [number, {"const": word}]} if word else number
    if values in ("int|auto", "int|model"):
        return {"anyOf": [{"type": "integer", "minimum": 1}, {"const": values[4:]}]}
    if values == "sizes":
        return {"type": "array", "items": {"type": "integer", "minimum": 1}, "uniqueItems": True}
    if values == TABLES:
        path = {"type": "string", "minLength": 1, "pattern": "^(?!/)"}
        return {"anyOf": [path, {"type": "array", "items": path, "minItems": 1}]}
    if values.startswith("tile"):
        sides = int(values[4])
        tile = {"type": "array", "items": {"type": "integer", "minimum": 8, "multipleOf": 8}, "minItems": sides, "maxItems": sides}
        return {"anyOf": [tile, {"const": "auto"}]}
    return {"enum": values.split("|")}


if __name__ == "__main__":
    write_json(SCHEMA_PATH, mapping_schema())
