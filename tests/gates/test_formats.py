"""Formats that change what the model computes are found by what really runs."""

import pytest

from gates.checks.precision import format_changes
from replay.lowering.select import plan_kernels
from tests.models import LLAMA_8B, mapping, round_hardware


def changes(before, after, **device):
    plans = (plan_kernels(LLAMA_8B, round_hardware(**device), mapping(*lines)) for lines in (before, after))
    return format_changes(*plans)


FP8 = ("[formats]", 'weights = "fp8"', 'activations = "fp8"')


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((), (), 0),
        ((), FP8, 8),
        ((), ("[formats]", 'kv = "fp8"'), 1),
        ((), ("[formats]", '"weights@mlp" = "int8"'), 1),
        ((), ("[formats]", '"weights@mlp" = "fp16"'), 1),  # as wide, but other values
        (FP8, (), 0),  # wider keeps every value
        (FP8, FP8, 0),
    ],
)
def test_formats_that_do_not_get_wider_are_changes(before, after, found):
    assert len(changes(before, after)) == found


def test_a_format_that_falls_back_changes_nothing():
    assert changes((), ("[formats]", 'activations = "fp8"'), matrix_flops_per_s={"bf16": 1e14}) == []


def test_weights_that_become_sparse_are_a_change_and_back_is_none():
    sparse = ("[formats]", 'sparsity = "2:4"')
    assert len(changes((), sparse, sparse_speedup_ratio=2.0)) == 4
    assert changes(sparse, (), sparse_speedup_ratio=2.0) == []
    assert changes((), sparse) == []  # no sparse units: nothing changes
