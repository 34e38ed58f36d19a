"""Loop nests over tiles, and how much of each operand its buffer holds meanwhile.

Three loops run over the tiles of rows m, columns n and depth k of a product. Beside one tile, a buffer may hold an operand for the whole
of a dimension (capital letter) that the loops inside run over: all of the depth of the current row tiles (``mK``), say, so that inputs are
read once although columns run outside the depth. NESTS are those that no other one beats in traffic and room for every operand at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
OPERANDS = ("inputs", "weights", "outputs")
WORDS = {"m": "rows", "n": "columns", "k": "depth"}

NESTS = (
    # loops, the outermost first; what is held of inputs, weights and outputs
    ("mnk", "mk", "kn", "mn"),
    ("mnk", "mK", "kn", "mn"),
    ("nmk", "mk", "Kn", "mn"),
    ("mnk", "mK", "KN", "mn"),
    ("nmk", "MK", "Kn", "mn"),
    ("nkm", "mk", "kn", "mn"),
    ("nkm", "mk", "kn", "Mn"),
    ("nkm", "MK", "kn", "Mn"),
    ("knm", "Mk", "kn", "mn"),
    ("knm", "Mk", "kn", "MN"),
    ("mkn", "mk", "kn", "mn"),
    ("mkn", "mk", "kn", "mN"),
    ("mkn", "mk", "KN", "mN"),
    ("kmn", "mk", "kN", "mn"),
    ("kmn", "mk", "kN", "MN"),
)
PANELS = (0, 1, 2)
"""The nests that hold one tile of each operand, or the whole depth of a panel of inputs or of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nests:
    """Loop nests as flags, in a shape that broadcasts with tiles."""

    whole_rows_of_inputs: Flags
    whole_depth_of_inputs: Flags
    whole_depth_of_weights: Flags
    whole_columns_of_weights: Flags
    whole_rows_of_outputs: Flags
    whole_columns_of_outputs: Flags
    inputs_again: Flags
    """Inputs are read anew for every column tile."""
    weights_again: Flags
    """Weights are read anew for every row tile."""
    sums_leave: Flags
    """Results leave as partial sums, and come back, for every depth tile."""

    def take(self, index: npt.NDArray[np.int64]) -> Nests:
        """Return the nest of each product [products, 1, 1, 1], by its position among these."""
        return replace(self, **{name: getattr(self, name).ravel()[index].reshape(-1, 1, 1, 1) for name in _FLAGS})


_FLAGS = tuple(field.name for field in fields(Nests))


def nests_at(places: tuple[int, ...]) -> Nests:
    """Return some of NESTS as flags [1, nests, 1, 1]."""
    flags = _TABLE[list(places)].T.reshape(len(_FLAGS), 1, -1, 1, 1)
    return Nests(**dict(zip(_FLAGS, flags, strict=True)))


def _flags(loops: str, inputs: str, weights: str, outputs: str) -> tuple[bool, ...]:
    held = (inputs[0], inputs[1], weights[0], weights[1], outputs[0], outputs[1])
    again = (moved_again(loops, inputs, "n"), moved_again(loops, weights, "m"), moved_again(loops, outputs, "k"))
    return (*(letter.isupper() for letter in held), *again)


def moved_again(loops: str, held: str, other: str) -> bool:
    """Return whether an operand moves anew for every trip of the loop it does not depend on: a loop inside that one runs over its parts."""
    inside = loops[loops.index(other) + 1 :]
    return any(letter in inside for letter in held)


def nest_name(index: int) -> tuple[str, str]:
    """Return the loops of a nest, the outermost first, and what of an operand is held for the whole of a dimension, in words."""
    loops, *held = NESTS[index]
    whole = [
        f"{operand} ({', '.join(WORDS[letter.lower()] for letter in letters if letter.isupper())})"
        for operand, letters in zip(OPERANDS, held, strict=True)
        if any(letter.isupper() for letter in letters)
    ]
    return ", ".join(WORDS[letter] for letter in loops), ", ".join(whole)


_TABLE = np.array([_flags(*nest) for nest in NESTS])
NEST_NAMES = np.array([nest_name(place) for place in range(len(NESTS))])
"""What `nest_name` says of NESTS [nests, 2]."""
