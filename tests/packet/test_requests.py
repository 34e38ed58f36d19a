"""A request of a gate written into a packet and read back is the same request."""

import json
from dataclasses import asdict, fields, replace

import numpy as np
import pyarrow as pa
import pytest

from gates.checks.drift import HistoryInput
from gates.finding import Finding
from gates.owners import OwnerMatch, parse_owners
from gates.packet.requests import HARDWARE, MAPPINGS, MODEL, from_document, measured_document, measured_from_document, to_document
from gates.policy import PolicySpec, default_measured_policy, default_policy, parse_policy
from gates.request import Arm, Cell, GateRequest, MeasuredArm, MeasuredRequest, QualityInput, RecordedCell, RunArchive
from gates.selfcheck.document import CitedSelfcheck
from replay.catalog.hardware import read_hardware
from replay.documents import pretty_json
from replay.ingress.quality.items import items_of
from replay.ingress.quality.result import QualityFacts, QualityResult, Summary
from replay.specs.mapping import parse_mapping
from tests.history.histories import chained
from tests.measured import measured_run_of
from tests.models import LLAMA_8B
from tests.runs import lognormal_s
from tests.step_tables import make_trace

TRACE = make_trace(np.arange(5.0), np.full(5, 100), np.full(5, 10))
OWNERS = '[[rules]]\nmatch = "gemm.*"\nteam = "kernels"\ncontact = "k@example.com"\n[[rules]]\nmatch = "stage:nowhere"\nteam = "nobody"\n'
POLICY = """
[blocking]
ttft_s = { p95 = "3 %", "p99.9" = "5 %" }
goodput_per_s = "3 %"
by_layer_type = { memory_stall_ratio = "2 points" }
[slo]
ttft_s = 1.0
[drift]
budget = "5 %"
[representativeness]
effect = "invalidates"
"""
ITEMS = items_of(
    {"task": pa.array(["t"]), "metric": pa.array(["task_accuracy_ratio"]), "item_id": pa.array(["1"]), "value": pa.array([1.0])}, "x"
)
SUMMARY = Summary(task="t", metric="nll_nats_per_token", value=1.0, standard_error=None, items_count=3)
FACTS = QualityFacts(format="table of items", digest="sha256:1", settings=(("limit", "3"),), notes=("a",))
RESULT = QualityResult(items=ITEMS, facts=FACTS, summaries=(SUMMARY,))
RULES = {
    "owners": parse_owners(OWNERS, "owners.toml", fallback=OwnerMatch(owner="@all", source="CODEOWNERS:1")),
    "owners_name": "owners.toml",
    "owners_digest": "sha256:" + "0" * 64,
    "seed": 2**60,
    "as_of": "2026-01-01T00:00:00+00:00",
    "findings": (Finding(code="policy_changed", message="it differs", effect="informs", stage="ingress", claim="a"),),
    "history": HistoryInput(name="verdicts.db", history=chained([1.0, 1.01, 1.02]), anchor="sha256:1"),
}


def arm(text: str, **more: object) -> Arm:
    return Arm(mapping=parse_mapping(text, "mapping.toml"), label="mapping.toml", text=text, file="mapping.toml", **more)


def request() -> GateRequest:
    device = read_hardware("a100-sxm-80gb")
    recorded = RecordedCell(
        trace_name="chat", trace_digest=TRACE.digest, trace_kind="synthetic", trace_locator="t.parquet", hardware=device
    )
    return GateRequest(
        baseline=arm('name = "one"\n\n[gemm]\ntile = [64, 64, 64]\n', model=LLAMA_8B, recorded=(recorded,)),
        candidate=arm('name = "two"\n[batching]\nmax_running = 8\n[gemm]\n"tile@decode" = [128, 64, 64]\n'),
        cells=(Cell(trace=TRACE, trace_name="traces/t.parquet", model=LLAMA_8B, hardware=device),),
        policy=parse_policy(POLICY, "policy.toml"),
        policy_name="policy.toml",
        selfcheck=CitedSelfcheck(name="self.json", document={"cells": []}),
        quality=QualityInput(baseline_name="qb", baseline=RESULT, candidate_name="qc", read_candidate=lambda: RESULT),
        reference=TRACE,
        reference_name="recent.parquet",
        **RULES,
    )


def same(one: object, other: object) -> None:
    for field in fields(one):
        if field.name not in ("jobs", "read_candidate", "trace_locator", "reference_locator"):
            assert getattr(one, field.name) == getattr(other, field.name), field.name


def test_a_request_about_mappings_comes_back_as_it_was():
    given = request()
    files = {f"cell/{MODEL}": LLAMA_8B, f"cell/{HARDWARE}": given.cells[0].hardware}
    files |= {MAPPINGS["baseline"]: given.baseline.mapping, MAPPINGS["candidate"]: given.candidate.mapping}
    facts = pretty_json({"facts": given.quality.baseline.facts.to_document(), "summaries": [asdict(SUMMARY)]})
    texts = {f"quality-{side}.json": facts for side in ("baseline", "candidate")}
    texts |= {name: pretty_json(part.to_document()) for name, part in files.items()}
    document = json.loads(pretty_json(to_document(given, ["cell"])))
    found = from_document(document, lambda name: json.loads(texts[name]), lambda _: ITEMS, lambda _: TRACE)
    same(replace(given, quality=None), replace(found, quality=None))
    assert (found.quality.candidate_name, found.quality.baseline, found.quality.read_candidate()) == ("qc", RESULT, RESULT)
    assert [setting.line for setting in found.candidate.mapping.settings] == [3, 5]


def test_a_request_about_measured_runs_comes_back_as_it_was():
    runs = {f"run-{place}": measured_run_of(lognormal_s(50, place), digest=f"sha256:{place}") for place in range(4)}
    named = [(f"{name}.parquet", run) for name, run in runs.items()]
    mapping = request().baseline.mapping
    candidate = MeasuredArm(label="new", runs=tuple(named[1:2]))
    given = MeasuredRequest(
        baseline=MeasuredArm(label="old", runs=tuple(named[:1]), mapping=mapping, mapping_name="mapping.toml"),
        read_candidate=lambda: candidate,
        policy=default_measured_policy(),
        policy_name="default",
        trace=TRACE,
        trace_name="t.parquet",
        hardware="h100-sxm",
        model="m",
        archive=RunArchive(label="runs", sets=(tuple(named[2:]),)),
        **RULES,
    )
    places = {id(run): name for name, run in runs.items()}
    document = json.loads(pretty_json(measured_document(given, candidate, lambda run: places[id(run)])))
    mapping_text = pretty_json(mapping.to_document())
    found = measured_from_document(document, lambda _: json.loads(mapping_text), lambda _: ITEMS, runs.__getitem__, lambda _: TRACE)
    same(given, found)
    assert found.read_candidate() == candidate


@pytest.mark.parametrize("policy", [default_policy(), default_measured_policy(), parse_policy(POLICY, "policy.toml")])
def test_a_policy_read_back_has_the_same_digest(policy):
    found = PolicySpec.from_document(json.loads(pretty_json(policy.to_document())))
    assert (found, found.digest) == (policy, policy.digest)
    assert replace(found, alpha=0.01).digest != policy.digest
