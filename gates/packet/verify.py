"""Verify a packet without replaying anything: each check says what it looked at, and what was not looked at is said, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gates.packet.packet import EVIDENCE, MANIFEST, PACKET, SCHEMA_VERSION, SIGNATURE, VERDICT, Packet, is_intact
from gates.packet.signature import payload_problem, signature_problem
from gates.statement import PREDICATE_TYPE
from replay import documents
from replay.errors import SpecError, printable
from replay.provenance import digest_bytes, digest_document

if TYPE_CHECKING:
    from collections.abc import Mapping

Document = dict[str, Any]
State = Literal["holds", "fails", "not_checked"]
_MOST_NAMED = 5
_DECISIONS = {"proven_safe": "release", "regression": "rollback", "inconclusive": "rollback", "invalid_evidence": "rollback"}
_WORST_FIRST = ("regression", "invalid_evidence", "inconclusive", "proven_safe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at, or was not."""

    name: str
    state: State
    message: str

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {"check": self.name, "state": self.state, "message": self.message}


def verify(packet: Packet, key: Path | None = None) -> tuple[Check, ...]:
    """Return every check of a packet; `key` is the public key that its signature should be by.

    Raises:
        SpecError: the key cannot be used, or the verdict is made by a newer version.
    """
    data = packet.read(VERDICT)
    verdict = _verdict(data, f"{packet.where}: {VERDICT}")
    checks = [*_container(packet), *_index(packet), _of("verdict", verdict_problem(verdict, data))]
    if isinstance(verdict, dict):
        checks += [*_evidence(packet, verdict), _signature(packet, data, key), _recomputed(verdict)]
    return tuple(checks)


def verdict_problem(verdict: Document | str, data: bytes) -> str | None:
    """Return what is wrong with a verdict by itself: its form, its plan's digest, or outcomes that its figures do not bear out."""
    if isinstance(verdict, str):
        return verdict
    if documents.pretty_json(verdict).encode() != data:
        return "its bytes are not those that a gate writes for its content"
    predicate = verdict["predicate"]
    plan = {key: value for key, value in predicate["plan"].items() if key != "digest"}
    if digest_document(plan) != predicate["plan"]["digest"]:
        return "its plan does not have the digest that it states"
    return next(_contradictions(predicate), None)


def _verdict(data: bytes, where: str) -> Document | str:
    """Return the statement, or why it is none.

    Raises:
        SpecError: a newer version made it, so that nothing can be said of it.
    """
    try:
        document = documents.parse_json(documents.decode(data, where, "a verdict"), where)
        kind = document.get("predicateType") if isinstance(document, dict) else None
        if isinstance(kind, str) and kind != PREDICATE_TYPE and kind.rpartition("/")[0] == PREDICATE_TYPE.rpartition("/")[0]:
            raise _newer(where, f"a verdict of the kind {kind}", PREDICATE_TYPE)
        documents.check(document, "verdict.v1", where)
    except _NewerError:
        raise
    except SpecError as error:
        return f"{error.where}: {error.got}"
    found: Document = document
    return found


class _NewerError(SpecError):
    """A file of a newer version."""


def _newer(where: str, got: str, known: str) -> _NewerError:
    return _NewerError(where, printable(got), f"one that this version knows ({known})", "install the version that wrote it")


def _container(packet: Packet) -> Iterator[Check]:
    if packet.is_canonical is not None:
        yield _of("zip", None if packet.is_canonical else "its bytes are not those that `replay gate --packet` writes for these files")


def _index(packet: Packet) -> Iterator[Check]:
    """Check the index, the files it lists, and which files nothing lists."""
    if PACKET not in packet.names:
        yield Check(name="index", state="not_checked", message=f"there is no {PACKET}: summary and signature are not covered by digests")
        return
    where = f"{packet.where}: {PACKET}"
    index, problem = _read(packet, PACKET, "packet.v1", where)
    if index is not None and digest_document({key: value for key, value in index.items() if key != "digest"}) != index["digest"]:
        problem = "it does not have the digest that it states"
    yield _of("index", problem)
    if index is None:
        return
    yield _of("files", _damage(packet, index["files"]))
    listed = {row["path"] for row in index["files"]} | {PACKET}
    others = sorted(name for name in packet.names - listed if not name.startswith(f"{EVIDENCE}/"))
    if others:
        yield Check(name="other files", state="not_checked", message=f"{_some(others)}: no part of the packet")


def _read(packet: Packet, name: str, schema: str, where: str) -> tuple[Document | None, str | None]:
    """Return a JSON file and None, or None and what is wrong with it; a newer one is an error of its own."""
    data = packet.read(name)
    try:
        document = documents.parse_json(documents.decode(data, where, "a file of a packet"), where)
        stated = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(stated, str) and stated.isdigit() and int(stated) > int(SCHEMA_VERSION):
            raise _newer(where, f"schema version {stated}", SCHEMA_VERSION)
        documents.check(document, schema, where)
    except _NewerError:
        raise
    except SpecError as error:
        return None, error.got
    return document, None if documents.pretty_json(document).encode() == data else "its bytes are not those that a gate writes"


def _damage(packet: Packet, rows: list[Mapping[str, Any]], folder: str = "") -> str | None:
    """Return which listed files are missing or changed."""
    missing = [f"{folder}{row['path']}" for row in rows if f"{folder}{row['path']}" not in packet.names]
    changed = [
        f"{folder}{row['path']}"
        for row in rows
        if f"{folder}{row['path']}" in packet.names and not _is_intact(packet, f"{folder}{row['path']}", row)
    ]
    parts = [f"{_some(names)} {verb}" for names, verb in ((missing, "missing"), (changed, "changed")) if names]
    return ", ".join(parts) or None


def _is_intact(packet: Packet, name: str, row: Mapping[str, Any]) -> bool:
    try:
        data = packet.read(name)
    except SpecError:  # emptied
        return False
    return is_intact(row, data)


def _evidence(packet: Packet, verdict: Document) -> Iterator[Check]:
    """Check the evidence against the digest in the verdict, file by file."""
    stated, place = verdict["predicate"]["evidence"], f"{EVIDENCE}/{MANIFEST}"
    if stated is None:
        yield Check(name="evidence", state="not_checked", message="the verdict rests on none: nothing could be replayed")
        return
    if place not in packet.names:
        lone = not any(name.startswith(f"{EVIDENCE}/") for name in packet.names)
        state: State = "not_checked" if lone and PACKET not in packet.names else "fails"
        yield Check(name="evidence", state=state, message=f"{place} is not there")
        return
    if digest_bytes(packet.read(place)) != stated["digest"]:
        yield _of("evidence", f"{place} does not have the digest that the verdict states")
        return
    rows = documents.parse_json(packet.read(place).decode(), place)["files"]
    problem = _damage(packet, rows, f"{EVIDENCE}/")
    listed = {f"{EVIDENCE}/{row['path']}" for row in rows} | {place}
    extra = sorted(name for name in packet.names - listed if name.startswith(f"{EVIDENCE}/"))
    if extra and problem is None:
        problem = f"{_some(extra)} not listed by its manifest"
    yield _of("evidence", problem)


def _signature(packet: Packet, data: bytes, key: Path | None) -> Check:
    if SIGNATURE not in packet.names:
        if key is not None:
            return _of("signature", f"there is no {SIGNATURE}")
        return Check(name="signature", state="not_checked", message="the verdict is not signed")
    envelope, where = packet.read(SIGNATURE), f"{packet.where}: {SIGNATURE}"
    if key is not None:
        return _of("signature", signature_problem(envelope, data, key, where))
    problem = payload_problem(envelope, data, where)
    if problem is not None:
        return _of("signature", problem)
    return Check(name="signature", state="not_checked", message=f"{SIGNATURE} is about this verdict; --key says whose it should be")


def _recomputed(verdict: Document) -> Check:
    evidence = verdict["predicate"]["evidence"]
    command = "" if evidence is None or evidence["reproduce"] is None else f"; `{evidence['reproduce']}` does that"
    return Check(name="recomputation", state="not_checked", message=f"nothing was replayed{command}")


def _contradictions(predicate: Document) -> Iterator[str]:
    """Yield what the decision, the cells and the claims say against each other."""
    worst = min((cell["basis"] for cell in predicate["per_trace"]), key=_WORST_FIRST.index)
    if predicate["basis"] != worst:
        yield f"its basis is {predicate['basis']} and its worst cell's {worst}"
    for holder in (predicate, *predicate["per_trace"]):
        if holder["decision"] != _DECISIONS[holder["basis"]]:
            yield f"it decides {holder['decision']} on the basis {holder['basis']}"
    if [claim for cell in predicate["per_trace"] for claim in cell["claims"]] != predicate["claims"]:
        yield "its claims are not those of its cells"
    for cell in predicate["per_trace"]:
        outcomes = {claim["outcome"] for claim in cell["claims"] if claim["blocking"]}
        if cell["basis"] == "proven_safe" and outcomes != {"holds"}:
            yield f"{cell['trace']} on {cell['hardware']} is proven safe, and not every blocking claim holds"
        if cell["basis"] == "inconclusive" and "disproved" in outcomes:
            yield f"{cell['trace']} on {cell['hardware']} is inconclusive, and a blocking claim is disproved"
        yield from (problem for claim in cell["claims"] if (problem := _unborne(claim)) is not None)


def _unborne(claim: Document) -> str | None:
    """Return what an outcome claims that the interval does not bear out."""
    interval, is_ratio, lower_is_better = claim["interval"], claim["scale"] == "ratio", claim["direction"] == "lower"
    if claim["outcome"] == "undecided":
        return None
    if interval is None:
        return f"{claim['id']} {claim['outcome']} without an interval"
    no_change = 1.0 if is_ratio else 0.0
    bad, good = (interval["upper"], interval["lower"]) if lower_is_better else (interval["lower"], interval["upper"])
    sign = 1.0 if lower_is_better else -1.0
    if claim["outcome"] == "holds" and sign * (bad - no_change) > claim["margin"] * (1 + 1e-9):
        return f"{claim['id']} holds, and its interval reaches beyond its margin"
    if claim["outcome"] == "disproved" and sign * (good - no_change) <= 0:
        return f"{claim['id']} is disproved, and its interval includes no change"
    return None


def _of(name: str, problem: str | None) -> Check:
    done = _DONE[name]
    return Check(name=name, state="holds" if problem is None else "fails", message=done if problem is None else problem)


_DONE = {
    "zip": "every byte is one that the packet's files account for",
    "index": f"{PACKET} has the digest that it states",
    "files": "every file that the index lists has its digest",
    "verdict": "it follows its schema, its plan has its digest, and its outcomes follow from its intervals",
    "evidence": "the manifest has the digest in the verdict, and every file the digest in the manifest",
    "signature": "the verdict was signed with this key",
}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(printable, names[:_MOST_NAMED])) + more
