"""Results of tools with fields missing, null or of another type: one sentence each, never a crash."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from replay.errors import InputError
from replay.ingress.measured.reader import read_measured

FORMATS = ("vllm_bench", "sglang_bench", "aiperf", "guidellm", "inference_perf", "llmperf", "vllm_engine_requests")
WRONG = (None, "text", [], {}, -1, True, [None], {"a": 1}, 1e400)
CASES_PER_FILE = 40


def leaves(value, path=()):
    """Yield the paths of the values of a JSON document, of long lists only the first entries."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, below in entries:
        yield from leaves(below, (*path, key))


def changed(document, path, wrong):
    found = copy.deepcopy(document)
    place = found
    for key in path[:-1]:
        place = place[key]
    if wrong == "missing":
        del place[path[-1]]
    else:
        place[path[-1]] = wrong
    return found


def mutations(text, draw):
    """Yield texts with one field changed: of the document, or of its first line."""
    try:
        document, rest = json.loads(text), None
    except json.JSONDecodeError:
        first, _, rest = text.partition("\n")
        document = json.loads(first)
    paths = list(leaves(document))
    for _ in range(CASES_PER_FILE):
        path, wrong = paths[draw.integers(len(paths))], [*WRONG, "missing"][draw.integers(len(WRONG) + 1)]
        written = json.dumps(changed(document, path, wrong)).replace("Infinity", "1e400")
        yield written if rest is None else f"{written}\n{rest[:20_000].rpartition(chr(10))[0]}\n"


@pytest.mark.parametrize("name", FORMATS)
def test_a_field_of_another_type_is_one_sentence(name, shared, tmp_path):
    draw = np.random.default_rng(11)
    files = [path for path in sorted((shared / "data" / "formats" / name).glob("*")) if path.suffix in (".json", ".jsonl")]
    if not files:
        pytest.skip(f"no JSON of {name} beside this checkout")
    for path in files:
        for number, text in enumerate(mutations(path.read_text(), draw)):
            place = tmp_path / f"{path.stem}-{number}{path.suffix}"
            place.write_text(text)
            try:
                read_measured(place)
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017 - reading it whole is right as well


@pytest.mark.parametrize("data", [b"\x00\x01\xff" * 1000, b"a,b\rc,ttft_s\r1,2\r", bytes(range(256)) * 12, b"\r\r\r"])
def test_bytes_that_are_no_result_are_one_sentence(data, tmp_path):
    for suffix in (".csv", ".json", ".jsonl", ".bin"):
        place = tmp_path / f"x{suffix}"
        place.write_bytes(data)
        with pytest.raises(InputError) as error:
            read_measured(place)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"ttfts": None}, {"output_lens": "many"}, {"itls": [3.0, 4.0]}, {"ttfts": {"a": 1}}])
def test_arrays_of_a_vllm_result_that_are_no_arrays_are_named(wrong, tmp_path):
    whole = {
"date": "20260101-000000", "backend": "vllm", "model_id": "m", "num_prompts": 2, "request_rate": 1.0, "completed": 2,
        "duration": 2.0, "input_lens": [10, 20], "output_lens": [3, 3], "ttfts": [0.1, 0.2], "itls": [[0.01, 0.01], [0.01, 0.01]],
        "errors": ["", ""], "mean_ttft_ms": 150.0,
    }  # fmt: skip
    place = tmp_path / "v.json"
    place.write_text(json.dumps(whole))
    assert read_measured(place)[0].requests.num_rows == 2
    place.write_text(json.dumps({**whole, **wrong}))
    with pytest.raises(InputError) as error:
        read_measured(place)
    assert "v.json" in str(error.value)
