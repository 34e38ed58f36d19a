"""Quality results in a packet: items as a table, the rest as JSON, so that they are judged again without the files they came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from replay import documents
from replay.folders import parquet_bytes
from replay.ingress.quality.result import QualityFacts, QualityResult, Summary

Document = dict[str, Any]
ARMS = ("baseline", "candidate")


def quality_files(evaluated: tuple[QualityResult, QualityResult]) -> dict[str, bytes]:
    """Return the files of both arms' results by name."""
    files = {}
    for arm, result in zip(ARMS, evaluated, strict=True):
        told = {"facts": result.facts.to_document(), "summaries": [asdict(one) for one in result.summaries]}
        files[f"quality-{arm}.json"] = documents.pretty_json(told).encode()
        files[f"quality-{arm}.parquet"] = parquet_bytes(result.items)
    return files


def quality_from_files(arm: str, read: Callable[[str], Document], read_table: Callable[[str], Any]) -> QualityResult:
    """Return an arm's result from its files."""
    told = read(f"quality-{arm}.json")
    facts = {**told["facts"], "settings": tuple(told["facts"]["settings"].items()), "notes": tuple(told["facts"]["notes"])}
    summaries = tuple(Summary(**one) for one in told["summaries"])
    return QualityResult(items=read_table(f"quality-{arm}.parquet"), facts=QualityFacts(**facts), summaries=summaries)
