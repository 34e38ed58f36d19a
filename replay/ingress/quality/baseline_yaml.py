"""Expected scores in YAML, as serving engines keep them for their own checks: `tasks[] {name, metrics[] {name, value}}, limit`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from replay.errors import SpecError
from replay.ingress.quality.items import joined_tables
from replay.ingress.quality.result import QualityFacts, QualityResult, Summary

_WANT = "tasks with a name and metrics, each with name and value"


def read_baseline(text: str, path: Path, digest: str) -> QualityResult:
    """Return the scores of a file; they state no error, only how many items (`limit`) they are of.

    Raises:
        SpecError: it is no such file, a key stands twice (which YAML readers pass over in silence), or the extra is not installed.
    """
    document = _load(text, str(path))
    if not isinstance(document, dict) or not isinstance(document.get("tasks"), list):
        raise SpecError(str(path), "no list of tasks", _WANT, "name a file of expected scores")
    limit = document.get("limit")
    summaries = []
    for task in document["tasks"]:
        metrics = task.get("metrics") if isinstance(task, dict) else None
        first = metrics[0] if isinstance(metrics, list) and metrics else None
        value = first.get("value") if isinstance(first, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise SpecError(str(path), f"a task without a score from 0 to 1 ({str(task)[:60]!a})", _WANT, "correct the task")
        count = limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else None
        name = str(task.get("name"))
        summaries.append(Summary(task=name, metric="task_accuracy_ratio", value=float(value), standard_error=None, items_count=count))
    settings = tuple((name, str(document[name])) for name in ("limit", "num_fewshot") if name in document)
    model = document.get("model_name")
    facts = QualityFacts(format="expected scores", digest=digest, settings=settings, model=model if isinstance(model, str) else None)
    return QualityResult(items=joined_tables([]), facts=facts, summaries=tuple(summaries))


def _load(text: str, where: str) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.constructor import DuplicateKeyError
        from ruamel.yaml.error import YAMLError
    except ImportError as error:
        raise SpecError(
            where, "YAML, and ruamel.yaml is not installed", "the extra `quality`", "pip install 'replay-gate[quality]'"
        ) from error
    try:
        return YAML(typ="safe", pure=True).load(io.StringIO(text))
    except DuplicateKeyError as error:
        got = f"a key stands twice ({str(error.problem)[:80]}), of which most readers keep the last"
        raise SpecError(where, got, "each key once", "remove one of the two") from error
    except YAMLError as error:
        raise SpecError(where, f"it is no YAML ({str(error)[:80]!a})", "a YAML file of expected scores", "mend the file") from error
