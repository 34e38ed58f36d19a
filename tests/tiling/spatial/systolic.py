"""A systolic array clock by clock and cell by cell: the oracle for cycles.

Values move one cell per clock; what enters row r or column c does so r or c clocks after the first. The arrays multiply real numbers,
so that a timing which would mix up values gives a wrong product.
"""

from dataclasses import dataclass

import numpy as np

Cell = tuple[int, int]


@dataclass(frozen=True)
class Run:
    cycles: int
    results: list[np.ndarray]
    """One per fold."""


def weight_stationary(inputs: list[np.ndarray], weights: list[np.ndarray], *, overlap: bool) -> Run:
    """Stream inputs [stream, rows] of each fold past its weights [rows, columns]; sums leave at the bottom.

    Weights fall from the top to their row, the lowest first, into a spare register; a cell takes its spare weight into use when the first
    input of a new fold reaches it. With `overlap`, the next weights fall as soon as the top of the column has taken its own; else once the
    fold is done. A fold starts when the port is free and the first column's spare weights are all there.
    """
    rows, columns = weights[0].shape
    use: dict[Cell, float] = {}
    spare: dict[Cell, tuple[int, float]] = {}
    falling: dict[Cell, tuple[int, int, float]] = {}  # fold, row to stop at, weight
    flowing: dict[Cell, tuple[int, int, float]] = {}  # fold, place in the stream, input
    above: dict[Cell, float] = {}
    results = [np.full((len(stream), columns), np.nan) for stream in inputs]
    loads, starts = [0], []
    clock = 0
    while np.isnan(results[-1]).any():
        fold = len(starts)
        free = not starts or clock >= starts[-1] + len(inputs[fold - 1])
        if free and fold < len(inputs) and all(spare.get((row, 0), (None,))[0] == fold for row in range(rows)):
            starts.append(clock)
            if overlap:
                loads.append(clock)
        if not overlap and len(loads) == fold and not np.isnan(results[fold - 1]).any():
            loads.append(clock)

        flowing = {(row, column + 1): token for (row, column), token in flowing.items() if column + 1 < columns}
        for index, start in enumerate(starts):
            for row in range(rows):
                if 0 <= clock - start - row < len(inputs[index]):
                    flowing[row, 0] = (index, clock - start - row, inputs[index][clock - start - row, row])
        below: dict[Cell, float] = {}
        for cell, (index, place, value) in flowing.items():
            if place == 0:
                loaded, use[cell] = spare.pop(cell)
                assert loaded == index
            below[cell] = above.get((cell[0] - 1, cell[1]), 0.0) + value * use[cell]
            if cell[0] == rows - 1:
                results[index][place, cell[1]] = below[cell]
        above = below

        falling = {(row + 1, column): token for (row, column), token in falling.items()}
        for index, start in enumerate(loads[: len(weights)]):
            for column in range(columns):
                if 0 <= clock - start - column < rows:
                    row = rows - 1 - (clock - start - column)
                    falling[0, column] = (index, row, weights[index][row, column])
        assert not spare.keys() & falling.keys(), "a falling weight meets one that is not in use yet"
        spare |= {cell: (index, weight) for cell, (index, row, weight) in falling.items() if cell[0] == row}
        falling = {cell: token for cell, token in falling.items() if cell[0] < token[1]}
        clock += 1
    return Run(clock, results)


def output_stationary(inputs: list[np.ndarray], weights: list[np.ndarray], *, overlap: bool) -> Run:
    """Stream inputs [rows, stream] and weights [stream, columns] of each fold past each other; sums stay, then leave downwards.

    A finished sum waits in a second register until the lowest of its column is done; then all fall. With `overlap`, the next fold starts
    when the ports are free, but not before sums have had as many clocks as there are rows; else once all sums have left.
    """
    rows, columns = inputs[0].shape[0], weights[0].shape[1]
    sums: dict[Cell, float] = {}
    waiting: dict[Cell, tuple[int, int, float]] = {}  # fold, row it belongs to, sum
    results = [np.full((rows, columns), np.nan) for _ in inputs]
    starts: list[int] = []
    clock = 0
    while np.isnan(results[-1]).any():
        fold = len(starts)
        if fold < len(inputs):
            streams = not starts or clock >= starts[-1] + max(inputs[fold - 1].shape[1], rows)
            if streams if overlap or not starts else not np.isnan(results[fold - 1]).any():
                starts.append(clock)

        ready = {(index, column) for (row, column), (index, own, _) in waiting.items() if row == rows - 1 == own}
        ready |= {(index, column) for (_, column), (index, _, _) in waiting.items() if not np.isnan(results[index][rows - 1, column])}
        moved: dict[Cell, tuple[int, int, float]] = {}
        for (row, column), token in waiting.items():
            place = (row + 1, column) if (token[0], column) in ready else (row, column)
            if place[0] == rows:
                results[token[0]][token[1], column] = token[2]
                continue
            assert place not in moved, "two sums in one register"
            moved[place] = token
        waiting = moved

        for index, start in enumerate(starts):
            length = inputs[index].shape[1]
            for row in range(rows):
                for column in range(columns):
                    place = clock - start - row - column
                    if 0 <= place < length:
                        so_far = sums[row, column] if place else 0.0
                        sums[row, column] = so_far + inputs[index][row, place] * weights[index][place, column]
                        if place == length - 1:
                            assert (row, column) not in waiting, "two sums in one register"
                            waiting[row, column] = (index, row, sums[row, column])
        clock += 1
    return Run(clock, results)


def product(inputs: np.ndarray, weights: np.ndarray, edges: Cell, dataflow: str, *, overlap: bool) -> tuple[int, np.ndarray]:
    """Return the clocks of a product on one array of rows x columns, and its result."""
    if dataflow == "input_stationary":
        cycles, transposed = product(weights.T, inputs.T, edges, "weight_stationary", overlap=overlap)
        return cycles, transposed.T
    down, across = inputs.shape[1] if dataflow == "weight_stationary" else inputs.shape[0], weights.shape[1]
    places = [(row, column) for row in range(0, down, edges[0]) for column in range(0, across, edges[1])]
    streams, others = [], []
    for row, column in places:
        cut = _padded(weights[:, column : column + edges[1]], (len(weights), edges[1]))
        if dataflow == "weight_stationary":
            streams.append(_padded(inputs[:, row : row + edges[0]], (len(inputs), edges[0])))
            others.append(_padded(cut[row : row + edges[0]], edges))
        else:
            streams.append(_padded(inputs[row : row + edges[0]], (edges[0], len(weights))))
            others.append(cut)
    run = (weight_stationary if dataflow == "weight_stationary" else output_stationary)(streams, others, overlap=overlap)
    result = np.zeros((len(inputs), weights.shape[1]))
    for (row, column), part in zip(places, run.results, strict=True):
        width = min(edges[1], across - column)
        if dataflow == "weight_stationary":
            result[:, column : column + width] += part[:, :width]
        else:
            height = min(edges[0], down - row)
            result[row : row + height, column : column + width] = part[:height, :width]
    return run.cycles, result


def _padded(block: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return np.pad(block, [(0, shape[0] - block.shape[0]), (0, shape[1] - block.shape[1])])
