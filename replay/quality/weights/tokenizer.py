"""Byte-level byte-pair encoding, as GPT-2 and SmolLM use it, from the vocabulary and merges in a GGUF file.

A text is cut into words (contractions, letters, digits, signs, blanks), the bytes of each become letters, and neighbours are merged in the
order of the list of merges. Letters and digits are told apart as Python's `re` does, which differs from the original rules for rare signs
such as superscript digits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from replay.errors import SpecError

_WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_FIRST_CUTS = {"gpt-2": re.compile(r"(?!)"), "smollm": re.compile(r"(\d)")}
"""Where a text is cut before words are, by the name in the file: SmolLM takes digits one by one."""


class Tokenizer:
    """The tokenizer of one file."""

    def __init__(self, tokens: list[str], merges: list[str], words: str) -> None:
        """Keep a vocabulary by id, merges in their order, and the name of how words are cut."""
        self._ids = {token: number for number, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ", 1)): rank for rank, merge in enumerate(merges)}
        self._first_cut = _FIRST_CUTS[words]
        self._known: dict[str, list[int]] = {}

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Tokenizer | None:
        """Return the tokenizer that a GGUF file holds; None where it is of another kind."""
        words = metadata.get("tokenizer.ggml.pre")
        tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
        if metadata.get("tokenizer.ggml.model") != "gpt2" or words not in _FIRST_CUTS or not tokens or not merges:
            return None
        return cls(tokens, merges, words)

    def encode(self, text: str, where: str) -> list[int]:
        """Return the ids of a text's tokens, without marks of beginning or end.

        Raises:
            SpecError: a piece of it is not in the vocabulary.
        """
        pieces = self._first_cut.split(text)
        return [token for piece in pieces for word in _WORDS.findall(piece) for token in self._word(word, where)]

    def _word(self, word: str, where: str) -> list[int]:
        if word not in self._known:
            pieces = [_LETTERS[byte] for byte in word.encode()]
            while len(pieces) > 1:
                ranks = [self._ranks.get(pair, len(self._ranks)) for pair in itertools.pairwise(pieces)]
                place = ranks.index(min(ranks))
                if ranks[place] == len(self._ranks):
                    break
                pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
            unknown = [piece for piece in pieces if piece not in self._ids]
            if unknown:
                raise SpecError(where, f"{word[:40]!a} is not in the vocabulary", "signs that it has", "give `tokens` instead")
            self._known[word] = [self._ids[piece] for piece in pieces]
        return self._known[word]


def _letters() -> list[str]:
    """Return the letter that stands for each byte: printable ones for themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_LETTERS = _letters()
