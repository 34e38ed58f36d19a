"""Sets of several files that one calibration stands for are fitted as one."""

import io

import numpy as np
import pyarrow.csv

from replay.calibration.kinds.attention import GENERATION
from replay.calibration.measured import joined
from replay.calibration.split import FOLDS, cross_validation_folds

HEAD = "attn_dtype,kv_dtype,batch_size,num_heads,num_kv_heads,head_dim,kv_len,ms_vllm_0.24.0"
ROW = "bfloat16,bfloat16,4,32,8,128,1000,0.02"


def sets(*rows, head=HEAD):
    return GENERATION.read(pyarrow.csv.read_csv(io.BytesIO("\n".join([head, *rows, ""]).encode())), "attention_generation_h100.csv")


def test_sets_of_one_device_family_stack_and_variant_become_one_in_their_order():
    plain = sets(ROW, ROW.replace("0.02", "0"))
    windowed = sets(ROW.replace("0.02", "0.01") + ",128", head=HEAD + ",window")
    other = sets(ROW.replace("bfloat16,4", "fp8,4"))
    together = joined([*plain, *other, *windowed])
    assert [(one.variant, len(one.seconds)) for one in together] == [("bf16-flash3_captured", 2), ("bf16-fp8kv-flash3_captured", 1)]
    assert together[0].seconds.tolist() == [0.02e-3, 0.01e-3]
    assert together[0].shapes["window_tokens"].tolist() == [1e9, 128.0]
    assert [column.tolist() for column in together[0].group_key] == [[32, 32], [8, 8], [128, 128]]
    assert together[0].skipped == plain[0].skipped
    assert together[1] is other[0]


def test_every_fold_has_groups_and_a_group_is_in_one_fold():
    groups = np.array([7, 7, 2, 9, 9, 9, 4])
    folds = cross_validation_folds(groups, 0)
    assert sorted(np.unique(folds).tolist()) == list(range(FOLDS))
    assert all(len(np.unique(folds[groups == group])) == 1 for group in groups)
