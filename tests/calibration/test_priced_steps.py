"""Prices of a few steps: those of the step table."""

import numpy as np
import pyarrow as pa
import pytest

from replay.calibration.priced_steps import StepPricer, StepShapes
from replay.execution.step_costs import step_seconds
from replay.ingress.model_config import read_model
from replay.pipeline import compile_mapping
from tests.models import LLAMA_8B, MIXTRAL, mapping, round_hardware

LIMITS = ("[batching]", "max_batched_tokens = 600", "max_running = 24", "max_context_tokens = 4096", "[parallelism]", "tensor = 2")


def both(model, *, decode, context, prefill, keys, prompts):
    """Return the prices of steps by the pricer and by the table, [steps] each."""
    device, spec = round_hardware(), mapping(*LIMITS)
    decode, context, prefill, keys, prompts = (np.array(column) for column in (decode, context, prefill, keys, prompts))
    steps = StepShapes(decode_sequences=decode, context_tokens=context, prefill_tokens=prefill, keys_tokens=keys, prompts=prompts)
    table = compile_mapping(model, device, spec).table
    columns = {
        "tokens": decode + prefill,
        "sequences": decode + prompts,
        "decode_sequences": decode,
        "decode_context_tokens": decode * context,
        "prefill_tokens": prefill,
        "prefill_pairs": prefill * keys,
    }
    tabled = step_seconds(table, pa.table({name: column.astype(np.int64) for name, column in columns.items()}))
    return StepPricer.of(model, device, spec.on(device.name)).price(steps).seconds, tabled.duration_s


@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL, read_model("deepseek-v3")], ids=lambda model: model.name)
def test_at_the_knots_of_the_table_prices_are_those_of_the_table(model):
    # captured and eager steps, decode alone, prompts alone and both; contexts 128 and 512, keys 16 and 64 and tokens 64 and 512 are knots
    priced, tabled = both(
        model,
        decode=[1, 3, 20, 0, 0, 7, 24],
        context=[128, 512, 512, 0, 0, 128, 512],
        prefill=[0, 0, 0, 64, 512, 64, 512],
        keys=[1, 1, 1, 16, 64, 64, 64],
        prompts=[0, 0, 0, 2, 4, 1, 0],
    )
    assert priced == pytest.approx(tabled, rel=1e-5)  # row tiles of experts have a tail of millionths that hangs on the longest row


def test_between_the_knots_they_differ_by_the_interpolation_of_attention_only():
    priced, tabled = both(LLAMA_8B, decode=[17, 5], context=[3000, 900], prefill=[0, 333], keys=[1, 167], prompts=[0, 1])
    assert priced == pytest.approx(tabled, rel=0.03)
