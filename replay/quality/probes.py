"""Probes: the prompts that a model is asked, as the ids of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_bytes, digest_document
from replay.quality.model import ProbeModel
from replay.quality.weights.tokenizer import Tokenizer

WANTED = 'JSON Lines of {"item_id": "a name", "tokens": [ids]} or "text" in place of tokens, optionally with "cluster"'
_FORMS = ({"item_id", "tokens"}, {"item_id", "text"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One prompt."""

    item_id: str
    tokens: Sequence[int]
    cluster: str
    """Document that the prompt is of: prompts of one document are not independent."""

    @property
    def prompt_hash(self) -> str:
        """Digest of the tokens."""
        return digest_document(list(self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSet:
    """The prompts of a file."""

    name: str
    probes: tuple[Probe, ...]
    digest: str


def read_probes(path: Path, tokenizer: Tokenizer | None = None) -> ProbeSet:
    """Return the probes of a file (WANTED); texts need the tokenizer of the weights.

    Raises:
        SpecError: a line is none, or an id stands twice.
    """
    data = documents.read_bytes(path, WANTED)
    lines = documents.decode(data, str(path), WANTED).splitlines()
    probes = tuple(_probe(line, f"{path}:{number}", tokenizer) for number, line in enumerate(lines, 1) if line.strip())
    seen: set[str] = set()
    for probe in probes:
        if probe.item_id in seen:
            raise SpecError(str(path), f"the item {probe.item_id[:80]!a} twice", "each item once", "rename one of them")
        seen.add(probe.item_id)
    return ProbeSet(name=path.name, probes=probes, digest=digest_bytes(data))


def check_fit(found: ProbeSet, model: ProbeModel, answer_tokens: int) -> None:
    """Refuse probes that a model cannot be asked.

    Raises:
        SpecError: a token is not in its vocabulary, or a probe and its answer are longer than its context.
    """
    for problem in _problems(found, model, answer_tokens):
        raise problem


def _problems(found: ProbeSet, model: ProbeModel, answer_tokens: int) -> Iterator[SpecError]:
    limit = model.max_context_tokens
    for probe in found.probes:
        where = f"{found.name}: item {probe.item_id[:80]!a}"
        highest = max(probe.tokens)
        if highest >= model.vocabulary_size:
            want = f"ids below {model.vocabulary_size}, the size of the model's vocabulary"
            yield SpecError(where, f"the token {highest}", want, "make the ids with the tokenizer of these weights")
        if limit is not None and len(probe.tokens) + answer_tokens > limit:
            got = f"{len(probe.tokens)} tokens and {answer_tokens} of an answer"
            yield SpecError(where, got, f"at most {limit}, the model's context", "shorten the probe, or lower --answer-tokens")


def _probe(line: str, where: str, tokenizer: Tokenizer | None) -> Probe:
    document = documents.parse_json(line, where)
    if not isinstance(document, dict) or document.keys() - {"cluster"} not in _FORMS:
        got = f"the keys {', '.join(list(document)[:6])}" if isinstance(document, dict) else "no JSON object"
        raise SpecError(where, got, WANTED, "write each prompt as the ids of its tokens")
    item_id, cluster = document["item_id"], document.get("cluster", document["item_id"])
    tokens, text = document.get("tokens"), document.get("text")
    if not isinstance(item_id, str) or not item_id or not isinstance(cluster, str):
        raise SpecError(where, "an item_id or cluster that is no text", "a name", "correct the line")
    if text is not None:
        tokens = _tokens_of(text, where, tokenizer)
    if not isinstance(tokens, list) or not _are_tokens(tokens):
        raise SpecError(where, "tokens that are no list of two or more ids", "whole numbers from 0 on", "correct the line")
    return Probe(item_id=item_id, tokens=tokens, cluster=cluster)


def _tokens_of(text: Any, where: str, tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        want = "`tokens`, or a GGUF file with a tokenizer of GPT-2 or SmolLM"
        raise SpecError(where, "a text, and no tokenizer among the weights that can be read", want, "write the ids of the text's tokens")
    if not isinstance(text, str):
        raise SpecError(where, "a text that is none", "a text", "correct the line")
    return tokenizer.encode(text, where)


def _are_tokens(value: list[Any]) -> bool:
    return len(value) >= 2 and all(type(token) is int and token >= 0 for token in value)
