"""The verdict as an in-toto statement of the predicate `test-result` v0.1, for policy engines that know no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.documents import pretty_json

Document = Mapping[str, Any]
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"


def render_test_result(document: Document) -> str:
    """Return the statement: PASSED on a release, else FAILED; every claim is a test, an advisory one that does not hold a warning.

    The configuration is the policy and the plan, by digest.
    """
    predicate = document["predicate"]
    is_release = predicate["decision"] == "release"
    configuration = [{"name": row["name"], "digest": _digest(row["digest"])} for row in predicate["inputs"] if row["role"] == "policy"]
    configuration.append({"name": "plan", "digest": _digest(predicate["plan"]["digest"])})
    claims = predicate["claims"]
    held = [claim["id"] for claim in claims if claim["outcome"] == "holds"]
    result = {
        "result": "PASSED" if is_release else "FAILED",
        "configuration": configuration,
        "passedTests": [] if predicate["basis"] == "invalid_evidence" else held,
        "warnedTests": [claim["id"] for claim in claims if claim["outcome"] != "holds" and not claim["blocking"]],
        "failedTests": [claim["id"] for claim in claims if claim["blocking"] and _fails(claim, predicate)],
    }
    statement = {key: document[key] for key in ("_type", "subject")}
    return pretty_json({**statement, "predicateType": PREDICATE_TYPE, "predicate": result})


def _fails(claim: Document, predicate: Document) -> bool:
    return predicate["basis"] == "invalid_evidence" or bool(claim["outcome"] != "holds")


def _digest(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}
