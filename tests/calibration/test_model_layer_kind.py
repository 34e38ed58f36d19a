"""The operators of a GPT-3 layer: columns to wholes, one worked operator, and the error on shared data."""

import numpy as np
import pytest

from replay.calibration.kinds.model_layer import MODEL_LAYER_KIND, OPERATORS
from replay.errors import SpecError
from tests.calibration.whole_tables import errors, table
from tests.models import round_hardware

WHERE = "some_layer_a100x4.csv"


def read(*rows, where=WHERE, head="op,ms"):
    return MODEL_LAYER_KIND.read(table(head, *rows), where)


def test_operators_and_the_layer_that_they_make_are_two_sets():
    single, layer = read("gelu,0.5", "ffn1,17.5")
    assert (single.hardware, single.stack, single.variant) == ("a100-sxm-80gb", "pytorch", "fp16-operators")
    assert single.seconds == pytest.approx([0.5e-3, 17.5e-3])
    assert (layer.variant, layer.seconds) == ("fp16-layer", pytest.approx([18e-3]))


def test_one_operator_by_hand():
    """gelu over 4 ranks: 16384 x 12288 elements of 2 bytes, read and written, on 100 units at 1 GHz and 1 TB/s, by start values.

    memory = 805,306,368 bytes / (0.85 x 1 TB/s) = 947.42 us; arithmetic = 201,326,592 x 0.1 cycles / 100 GHz = 201.33 us; their
    cubic norm = 950.44 us; the floor adds 3 us.
    """
    (single, _) = read("gelu,0.5")
    assert single.predict(round_hardware()).seconds == pytest.approx([953.44e-6], rel=1e-5)


def test_products_take_at_least_their_operations_and_at_most_twice_that():
    """qkv_proj over 4 ranks: 2 x 16384 x 12288 x 9216 operations at 100 TFLOP/s are 37.11 ms; o_proj a third of that; ffn1 four thirds."""
    (single, _) = read("qkv_proj,1", "o_proj,1", "ffn1,1", "ffn2,1")
    ratio = single.predict(round_hardware()).seconds / (37.11e-3 * np.array([1, 1 / 3, 4 / 3, 4 / 3]))
    assert np.all((ratio > 1.0) & (ratio < 2.0))


def test_the_layer_is_the_sum_of_its_operators():
    single, layer = read(*(f"{name},1" for name in OPERATORS))
    device = round_hardware(matrix_flops_per_s={"bf16": 100e12, "fp16": 100e12})
    assert layer.predict(device).seconds == pytest.approx([single.predict(device).seconds.sum()])


def test_more_ranks_share_products_and_not_norms():
    device = round_hardware()
    four, eight = (read("ffn1,1", "layernorm_mha,1", where=f"layer_a100x{ranks}.csv")[0].predict(device).seconds for ranks in (4, 8))
    assert eight[0] == pytest.approx(four[0] / 2, rel=0.05)
    assert eight[1] == four[1]


BAD = {
    "unknown operator": (("gelus,1",), WHERE, "op,ms", "did you mean 'gelu'"),
    "an operator twice": (("gelu,1", "gelu,1"), WHERE, "op,ms", "op, row 3: a second operator 'gelu'"),
    "no time": (("gelu,1", "ffn1,0"), WHERE, "op,ms", "ms, row 3: no time above zero"),
    "text as time": (("gelu,fast",), WHERE, "op,ms", "'fast'"),
    "no device": (("gelu,1",), "layer.csv", "op,ms", "no device and ranks"),
    "unknown device": (("gelu,1",), "layer_a1000x4.csv", "op,ms", "unknown device 'a1000'"),
    "ranks that do not divide": (("gelu,1",), "layer_a100x5.csv", "op,ms", "5 ranks"),
    "one rank": (("gelu,1",), "layer_a100x1.csv", "op,ms", "1 ranks"),
    "another column": (("gelu,1,2",), WHERE, "op,ms,us", "unknown column 'us'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    rows, where, head, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        read(*rows, where=where, head=head)
    message = str(caught.value)
    assert message.startswith(where)
    assert named in message
    assert "\n" not in message


def test_the_measured_layer_is_near_the_sum_of_its_kernels(shared):
    found = errors(MODEL_LAYER_KIND, shared / "data" / "measurements" / "llmcompass_gpt3_layer_prefill_a100x4.csv")
    assert len(found["a100-sxm-80gb", "pytorch", "fp16-operators"]) == 12
    assert abs(found["a100-sxm-80gb", "pytorch", "fp16-layer"][0]) < 0.30
    assert np.abs(found["a100-sxm-80gb", "pytorch", "fp16-operators"]).max() < 0.40
