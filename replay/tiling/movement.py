"""Costs of kernels bound by movement: streams and collectives of a kernel plan, by the calibrated families of a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replay.lowering.kernel_plan import Kernel
from replay.tiling.families.serving_collectives import serving_collective
from replay.tiling.families.serving_streams import serving_stream, stream_rows
from replay.tiling.library import Cost, KernelLibrary, Timed, in_order
from replay.tiling.terms import Array

EAGER_STACK = "pytorch"
FLOOR = "floor_s"
"""Floor of a stream. Eager timings are never shorter than the host's launch (10 to 50 us), which a served step pays apart: there the
family's start value stands in."""
COLLECTIVE_FAMILIES = ("ring_collective", "peer_all_reduce")


def stream_families(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of the families that may price a stream."""
    return tuple(dict.fromkeys(stand_in.family.name for stand_in in serving_stream(kernel.ops, kernel.layer_type)))


def price_stream(kernel: Kernel, rows: Array, library: KernelLibrary, stack: str) -> Cost:
    """Return the cost of an element-wise or row-wise kernel for each row count [rows]."""
    stand_ins = serving_stream(kernel.ops, kernel.layer_type)
    places = ((stand_in, (stand_in.family.name, (stand_in.variant,), stack)) for stand_in in stand_ins)
    there = ((stand_in, library.find(*place), library.timings(*place)) for stand_in, place in places)
    stand_in, found, timings = next((one for one in there if one[1] or one[2]), (stand_ins[0], None, None))
    exact = stand_in == stand_ins[0]
    shapes = stream_rows(stand_in, kernel.elementwise, rows.astype(int))
    model = library.model(stand_in.family, found, exact=exact, timed=Timed.of(timings, exact=exact))
    if found is not None and found.fit.stack == EAGER_STACK:
        floor_s = next(definition.start for definition in stand_in.family.parameters if definition.name == FLOOR)
        model = replace(model, parameters={**model.parameters, FLOOR: min(floor_s, model.parameters[FLOOR])})
    return model.cost(shapes, library.device)


def price_collective(kernel: Kernel, rows: Array, one_shot_max_bytes: int, library: KernelLibrary, stack: str) -> Cost:
    """Return the cost of a collective over the node's links for each row count [rows]."""
    device = library.device
    shapes, paths = serving_collective(kernel.collective, rows.astype(int), one_shot_max_bytes, device)
    costs, places = [], []
    for path in paths:
        here = np.flatnonzero(path.rows)
        if len(here):
            some = {name: column[here] for name, column in shapes.items()}
            found = library.find(path.family.name, path.variants, stack)
            timed = Timed.of(library.timings(path.family.name, path.variants, stack))
            costs.append(library.model(path.family, found, timed=timed).cost(some, device))
            places.append(here)
    return in_order(costs, places)
