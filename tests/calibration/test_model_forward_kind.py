"""Whole forward passes: columns to wholes, operations by hand, and the error on shared data."""

import numpy as np
import pytest

from replay.calibration.kinds.model_forward import MODEL_FORWARD_KIND, TRAINING
from replay.errors import SpecError
from tests.calibration.whole_tables import errors, table
from tests.models import round_hardware

HEAD = "gpu,model,phase,seq,batch,variant,e2e_ms,fw_ms,bwall_ms"
BERT = "Tesla_V100-PCIE-32GB,bert_large,inf,512,16,unfused,518,518,0"


def read(*rows, head=HEAD):
    return MODEL_FORWARD_KIND.read(table(head, *rows), "passes.csv")


def predicted(*rows):
    return np.concatenate([whole.predict(round_hardware()).seconds for whole in read(*rows)])


def test_eager_and_fused_passes_of_a_device_are_two_stacks():
    found = read(BERT, BERT.replace("unfused", "fusion"), BERT.replace("Tesla_V100-PCIE-32GB", "AMD_Instinct_MI100"))
    assert [(whole.hardware, whole.stack, whole.variant) for whole in found] == [
        ("mi100", "pytorch", "fp32"),
        ("v100-pcie-32gb", "pytorch", "fp32"),
        ("v100-pcie-32gb", "pytorch_fusion", "fp32"),
    ]
    assert all(whole.seconds.tolist() == [0.518] for whole in found)


def test_a_pass_whose_forward_time_is_not_recorded_takes_the_whole_time():
    (found,) = read(BERT.replace("518,518", "518,0"), BERT.replace("518,518", "518,500"))
    assert found.seconds.tolist() == [0.518, 0.5]


def test_what_is_not_predicted_is_counted():
    others = ["inf,512,1,unfused,0,0,0", "train,512,16,unfused,900,300,600", "train,512,16,tp4,900,0,0"]
    rows = [BERT, *(f"Tesla_T4,bert_large,{rest}" for rest in others), "Tesla_T4,switchxl4,inf,512,1,unfused,900,900,0"]
    (found,) = read(*rows)
    assert dict(found.skipped) == {
        TRAINING: 2,
        "time is not a number above zero and below an hour": 1,
        "switchxl4: its dimensions and routing are not published": 1,
    }


@pytest.mark.parametrize(
    ("row", "weights", "layers", "width", "tokens", "sequences"),
    [
        (BERT, 24 * 12 * 1024**2 + 1024**2 + 1024 * 30522, 24, 1024, 512, 16),
        (BERT.replace("bert_large,inf,512", "gpt2_large,inf,1024"), 36 * 12 * 1280**2 + 1280 * 50257, 36, 1280, 1024, 16),
        (BERT.replace("bert_large,inf,512", "opt_13,inf,2048"), 24 * 12 * 2048**2 + 2048 * 50272, 24, 2048, 2048, 16),
    ],
    ids=["bert_large", "gpt2_large", "opt_13"],
)
def test_a_pass_takes_at_least_its_operations_and_not_twice_that(row, weights, layers, width, tokens, sequences):
    """2 operations a weight and token, 4 a (query, key) pair and channel, at 10 TFLOP/s: 1 TB/s leaves streams less than as much again."""
    operations = 2 * weights * tokens * sequences + 4 * layers * width * tokens**2 * sequences
    assert operations / 10e12 < predicted(row)[0] < 2 * operations / 10e12


def test_fusion_saves_the_element_wise_kernels_and_no_product():
    eager, fused = predicted(BERT, BERT.replace("unfused", "fusion"))
    # 2 on scores and an addition's share of each norm, 24 layers: at 1 TB/s the scores alone are 4 passes of 0.27 GB a layer
    saved = 24 * 4 * 16 * 16 * 512**2 * 4 / 0.85e12
    assert saved < eager - fused < 1.5 * saved


def test_twice_the_batch_takes_twice_the_time():
    one, two = predicted(BERT.replace(",16,", ",8,"), BERT)
    assert two == pytest.approx(2 * one, rel=0.02)


BAD = {
    "unknown model": (BERT.replace("bert_large", "bert_larg"), HEAD, "did you mean 'bert_large'"),
    "unknown variant": (BERT.replace("unfused", "jit"), HEAD, "variant: unknown name 'jit'"),
    "unknown phase": (BERT.replace(",inf,", ",eval,"), HEAD, "phase: unknown name 'eval'"),
    "unknown device": (BERT.replace("Tesla_V100-PCIE-32GB", "Tesla_V1000"), HEAD, "unknown device"),
    "no size": (BERT.replace(",512,", ",0,"), HEAD, "seq, row 2"),
    "training only": (BERT.replace(",inf,", ",train,"), HEAD, "no row can be predicted: training"),
    "another column": (BERT + ",1", HEAD + ",us", "unknown column 'us'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_sentence_that_names_the_place(case):
    row, head, named = BAD[case]
    with pytest.raises(SpecError) as caught:
        read(row, head=head)
    message = str(caught.value)
    assert message.startswith("passes.csv")
    assert named in message
    assert "\n" not in message


def test_measured_passes_are_near_the_sums_of_their_kernels(shared):
    found = errors(MODEL_FORWARD_KIND, shared / "data" / "measurements" / "neusight_e2e_fp32.csv")
    assert sum(map(len, found.values())) == 51
    for place in (("a100-pcie-40gb", "pytorch"), ("h100-sxm", "pytorch"), ("p100-pcie-16gb", "pytorch"), ("v100-pcie-32gb", "pytorch")):
        assert np.abs(found[*place, "fp32"]).mean() < 0.15
    everything = np.concatenate(list(found.values()))
    assert np.median(np.abs(everything)) < 0.15
