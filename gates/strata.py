"""Strata: parts of a trace's requests that are judged on their own, so that one shape never stands for another."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = re.compile(r"prompt_tokens\[(\d+),(\d+|inf)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBin:
    """Requests whose prompt has `tokens_from` tokens or more and fewer than `tokens_to` (None = no upper end)."""

    tokens_from: int
    tokens_to: int | None

    @property
    def stratum(self) -> str:
        """The name claims use: ``prompt_tokens[512,2048)``."""
        return f"prompt_tokens[{self.tokens_from},{'inf' if self.tokens_to is None else self.tokens_to})"

    @property
    def phrase(self) -> str:
        """The same for people."""
        if self.tokens_to is None:
            return f"prompts of {self.tokens_from} tokens or more"
        return f"prompts of {self.tokens_from} to {self.tokens_to - 1} tokens"


def prompt_bins(edges_tokens: Sequence[int]) -> tuple[PromptBin, ...]:
    """Return the bins that ascending inner edges cut, from 0 upwards without a gap."""
    cuts: list[int | None] = [0, *edges_tokens, None]
    return tuple(PromptBin(tokens_from=low or 0, tokens_to=high) for low, high in itertools.pairwise(cuts))


def parse_stratum(stratum: str) -> PromptBin:
    """Return the bin of a stratum name.

    Raises:
        ValueError: it is no prompt-length bin.
    """
    match = _NAME.fullmatch(stratum)
    if match is None:
        raise ValueError(f"{stratum!r} is not a stratum such as prompt_tokens[512,2048)")
    return PromptBin(tokens_from=int(match.group(1)), tokens_to=None if match.group(2) == "inf" else int(match.group(2)))
