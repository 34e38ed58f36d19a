"""The search of the fastest tile and split against trying every one that a library may take."""

import numpy as np
import pytest

from replay.catalog.hardware import read_hardware
from replay.tiling.families.gemm import gemm_family, gemm_shapes
from replay.tiling.families.gemm_tiles import MOST_SPLIT_TILES_PER_UNIT, SPLITS, legal_tiles, most_split

SHAPES = gemm_shapes(
    np.array([1, 2, 16, 17, 64, 100, 256, 300, 1000, 5000]),
    np.array([64, 512, 4096, 28672] * 3)[:10],
    np.array([64, 200, 4096, 14336, 100] * 2),
)


@pytest.mark.parametrize(("device", "variant"), [("a100-sxm-80gb", "bf16"), ("h100-sxm", "fp8")])
def test_the_search_finds_what_trying_every_tile_and_split_finds(device, variant):
    device = read_hardware(device)
    family = gemm_family(variant, "", device, cold=True)
    parameters = {definition.name: definition.start for definition in family.parameters}
    found = family.choices(SHAPES, device, parameters)
    for row in range(len(SHAPES["rows"])):
        shape = {name: column[row : row + 1] for name, column in SHAPES.items()}
        most = most_split(shape["depth"], family.format.step_elements)[0]
        tried = []
        for tile in legal_tiles(family.format, device):
            tiles = np.ceil(shape["rows"][0] / tile[0]) * np.ceil(shape["columns"][0] / tile[1])
            for split in SPLITS:
                if split == 1 or (split <= most and tiles * split <= MOST_SPLIT_TILES_PER_UNIT * device.units_count):
                    tried.append(family.seconds_at(shape, device, parameters, tile=tile, split=split)[0])
        best_s = min(tried)
        if family.paths.vector and shape["rows"][0] == 1:
            assert found.seconds[row] <= best_s
        else:
            assert found.seconds[row] == best_s
