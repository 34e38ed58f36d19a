"""The verdict as SARIF 2.1.0, for code scanning: a result per blocking claim that does not hold, at the lines of the blamed knobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from gates.attribution.severity import by_severity
from gates.claim import claim_key
from gates.render.blame import blamed, mapping_file
from gates.render.figures import accepted, bounds, change, format_value, subject
from gates.render.story import headline
from replay.documents import pretty_json
from replay.errors import printable

Document = Mapping[str, Any]
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"disproved": "error", "undecided": "warning"}
VERDICT_RULE = "verdict"


def render_sarif(document: Document, *, prefix: str = "") -> str:
    """Return the verdict document as a SARIF log; `prefix` is the project's folder in the repository (``traces/demo/``).

    A release without results says that everything passed. Where the evidence is invalid, the verdict itself is the result, for then no
    claim says anything.
    """
    predicate = document["predicate"]
    results = [{**one, **_places(predicate, prefix)} for one in _results(predicate)]
    rules = {result["ruleId"]: result["message"]["text"] for result in results}
    tool = {"name": predicate["tool"]["name"], "version": predicate["tool"]["version"], "rules": [{"id": rule} for rule in sorted(rules)]}
    run = {"tool": {"driver": tool}, "columnKind": "unicodeCodePoints", "results": results}
    return pretty_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _results(predicate: Document) -> Iterator[dict[str, Any]]:
    claims = [claim for claim in by_severity(predicate["claims"]) if claim["blocking"] and claim["outcome"] != "holds"]
    if predicate["decision"] != "release" and (predicate["basis"] == "invalid_evidence" or not claims):
        yield _result(VERDICT_RULE, "error", headline(predicate), predicate["basis"])
        return
    for claim in claims:
        arms = " -> ".join(format_value(claim[arm], claim["unit"]) for arm in ("baseline", "candidate"))
        reason = f": {claim['reason']}" if claim["reason"] else ""
        text = (
            f"{subject(claim)} on {claim['trace']} / {claim['hardware']} is {claim['outcome']}: {arms}, {change(claim)} "
            f"(bounds {bounds(claim)}; {accepted(claim)} accepted){reason}"
        )
        key = claim_key(claim["id"], claim["trace"], claim["hardware"])
        yield _result(key, _LEVELS[claim["outcome"]], text, claim["id"])


def _result(rule: str, level: str, text: str, identity: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": printable(text)},
        "partialFingerprints": {"claim/v1": identity},
    }


def _places(predicate: Document, prefix: str) -> dict[str, Any]:
    """Return the lines of the mapping file that set the blamed knobs, or the file's first line where none is known."""
    name = mapping_file(predicate)
    if name is None:
        return {}
    lines = sorted({knob["line"] for knob in blamed(predicate) if knob.get("line") is not None}) or [1]
    artifact = {"uri": quote(prefix + name)}
    places = [{"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}} for line in lines]
    return {"locations": places[:1], **({"relatedLocations": places[1:]} if len(places) > 1 else {})}
