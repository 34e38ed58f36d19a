"""Results of EleutherAI's lm-evaluation-harness: samples (`samples_<task>_<time>.jsonl`) and results (`results_<time>.json`).

Both layouts of results: metrics with their filter after a comma ("acc,none"), and the older one without. Of a task with several metrics or
filters the first counts as its score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay import documents
from replay.errors import SpecError
from replay.ingress.quality.items import items_of, joined_tables
from replay.ingress.quality.result import QualityFacts, QualityResult, Summary
from replay.provenance import digest_bytes, digest_document

Document = dict[str, Any]
_SAMPLES = re.compile(r"samples_(.+?)_\d{4}-\d\d-\d\dT.*\.jsonl")
_SETTINGS = ("n-shot", "versions", "task_hashes", "chat_template_sha", "fewshot_as_multiturn", "system_instruction_sha")
_SETTINGS_OF_CONFIG = ("limit", "num_fewshot", "random_seed", "gen_kwargs")
_WHAT = "a result of lm-evaluation-harness"


def is_samples(first: Document) -> bool:
    """Return whether the first line of a JSON Lines file is a sample."""
    return {"doc_id", "filtered_resps", "doc_hash"} <= first.keys()


def is_results(document: Document) -> bool:
    """Return whether a JSON document is a file of results."""
    return {"results", "versions", "config"} <= document.keys()


def read_folder(folder: Path) -> QualityResult:
    """Return the result of a folder with samples, and the settings of the results beside them, where there are any.

    Raises:
        SpecError: there are no samples, several results, or a file cannot be used.
    """
    samples = sorted(path for path in folder.rglob("samples_*.jsonl"))
    results = sorted(folder.rglob("results_*.json"))
    if not samples or len(results) > 1:
        got = f"{len(samples)} files of samples and {len(results)} of results"
        raise SpecError(str(folder), got, "samples_*.jsonl of one evaluation, and its results_*.json", "name the folder of one evaluation")
    found = [read_samples(path) for path in samples]
    digest = digest_document([result.facts.digest for result in found])
    about = read_results(results[0]).facts if results else QualityFacts(format="lm-eval samples", digest=digest)
    facts = QualityFacts(
        format="lm-eval samples",
        digest=digest,
        settings=about.settings,
        model=about.model,
        notes=tuple(note for one in found for note in one.facts.notes),
    )
    return QualityResult(items=joined_tables([result.items for result in found]), facts=facts)


def read_samples(path: Path) -> QualityResult:
    """Return the items of one task's samples.

    Raises:
        SpecError: a line is no sample, no metric of it is a score from 0 to 1, or a sample stands twice.
    """
    where = str(path)
    data = documents.read_bytes(path, _WHAT)
    match = _SAMPLES.fullmatch(path.name)
    task = match[1] if match else path.stem.removeprefix("samples_")
    first = documents.parse_json(documents.decode(data.split(b"\n", 1)[0], f"{where}:1", _WHAT), f"{where}:1")
    metric = _score(first, where)
    rows = _rows(data, metric, where)
    chosen = rows.filter(pc.equal(rows["filter"], first.get("filter", "none")))
    others = sorted(
        {name for name in first.get("metrics", ()) if name != metric}
        | (set(pc.unique(rows["filter"]).to_pylist()) - {first.get("filter", "none")})
    )
    notes = (f"{task}: {metric} ({first.get('filter', 'none')}) is the score; {', '.join(others)} left aside",) if others else ()
    count = chosen.num_rows
    items = items_of(
        {
            "task": pa.array([task] * count),
            "metric": pa.array(["task_accuracy_ratio"] * count),
            "item_id": chosen["doc_hash"] if chosen["doc_hash"].null_count == 0 else chosen["doc_id"].cast(pa.string()),
            "prompt_hash": chosen["prompt_hash"],
            "target_hash": chosen["target_hash"],
            "value": chosen[metric],
        },
        where,
    )
    return QualityResult(items=items, facts=QualityFacts(format="lm-eval samples", digest=digest_bytes(data), notes=notes))


def read_results(path: Path) -> QualityResult:
    """Return the means of a file of results, with the errors that the harness states ("N/A" is none).

    Raises:
        SpecError: it is no such file.
    """
    where = str(path)
    document = documents.read_json_object(path, _WHAT)
    counts = document.get("n-samples", {})
    summaries = tuple(_summaries(document["results"], counts, document.get("higher_is_better", {})))
    if not summaries:
        raise SpecError(where, "no score from 0 to 1", "at least one task with acc, exact_match or the like", "name a file with scores")
    config = document["config"]
    settings = {name: document[name] for name in _SETTINGS if name in document} | {
        name: config[name] for name in _SETTINGS_OF_CONFIG if name in config
    }
    told = tuple((name, json.dumps(value, sort_keys=True)) for name, value in sorted(settings.items()))
    model = document.get("model_name") or config.get("model_args")
    facts = QualityFacts(
        format="lm-eval results",
        digest=digest_bytes(documents.read_bytes(path, _WHAT)),
        settings=told,
        model=model if isinstance(model, str) else None,
    )
    return QualityResult(items=joined_tables([]), facts=facts, summaries=summaries)


def _summaries(results: Document, counts: Document, higher: Document) -> Iterator[Summary]:
    """Yield the first score of each task."""
    for task, figures in results.items():
        for key, value in figures.items():
            name, _, kind = key.partition(",")
            is_score = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1 and "stderr" not in name
            if name == "alias" or not is_score or higher.get(task, {}).get(name) is False:
                continue
            error = figures.get(f"{name}_stderr,{kind}" if kind else f"{name}_stderr")
            count = counts.get(task, {}).get("effective") if isinstance(counts.get(task), dict) else None
            known = float(error) if isinstance(error, int | float) and not isinstance(error, bool) else None
            yield Summary(task=task, metric="task_accuracy_ratio", value=float(value), standard_error=known, items_count=count)
            break


def _score(first: Document, where: str) -> str:
    """Return the first metric of a sample whose value is a score from 0 to 1."""
    for name in first.get("metrics") or [key for key in first if key in ("acc", "exact_match", "f1")]:
        value = first.get(name)
        if isinstance(value, bool | int | float) and 0 <= value <= 1:
            return str(name)
    raise SpecError(
        f"{where}:1", "no metric that is a score from 0 to 1", "samples with acc, exact_match or the like", "name other samples"
    )


def _rows(data: bytes, metric: str, where: str) -> pa.Table:
    """Return doc_id, doc_hash, prompt_hash, target_hash, filter and the metric of every sample; what else it holds is not parsed."""
    import io

    import pyarrow.json as pj

    schema = pa.schema(
        [
            ("doc_id", pa.int64()),
            *((name, pa.string()) for name in ("doc_hash", "prompt_hash", "target_hash", "filter")),
            (metric, pa.float64()),
        ]
    )
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = pj.read_json(
            io.BytesIO(data), read_options=pj.ReadOptions(block_size=max(1 << 20, min(len(data), 1 << 26))), parse_options=options
        )
    except pa.ArrowInvalid:
        table = _slow_rows(data, metric, schema, where)
    filters = pc.fill_null(table["filter"], "none")
    return table.set_column(table.column_names.index("filter"), "filter", filters)


def _slow_rows(data: bytes, metric: str, schema: pa.Schema, where: str) -> pa.Table:
    """Return the same line by line: slower, with the line of what is wrong, and scores that are written as true and false."""
    rows = []
    for number, line in enumerate(data.decode("utf-8-sig", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        sample = documents.parse_json(line, f"{where}:{number}")
        value = sample.get(metric) if isinstance(sample, dict) else None
        if not isinstance(value, bool | int | float):
            raise SpecError(
                f"{where}:{number}", f"no {metric}, or one that is no number", "a sample with its score", "correct or remove the line"
            )
        rows.append({**{name: sample.get(name) for name in schema.names}, metric: float(value)})
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SpecError(
            where, f"a field of another type ({error})"[:160], "samples as the harness writes them", "write them again"
        ) from error
