"""Kept tables: what comes out of a cache is what went in, bit by bit, and nothing else ever does."""

from dataclasses import fields, replace

import pyarrow as pa
import pytest

from replay.catalog.hardware import read_hardware
from replay.pipeline import compile_mapping
from replay.specs.mapping import parse_mapping
from replay.specs.measured import MeasuredKernels
from replay.tiling.table_bytes import TABLES, pack, unpack
from tests.models import LLAMA_8B, MIXTRAL, mapping

A100, H100, B200 = (read_hardware(name) for name in ("a100-sxm-80gb", "h100-sxm", "b200-sxm"))
SMALL = ("[batching]", "max_batched_tokens = 64", "max_running = 16")


class Memory:
    """A cache that counts."""

    def __init__(self, edition="1"):
        self.edition, self.kept, self.hits = edition, {}, 0

    def read(self, key):
        self.hits += key in self.kept
        return self.kept.get(key)

    def write(self, key, data):
        self.kept[key] = data


def bits(table):
    """Return everything that a step table holds, floats as their bytes."""
    found = {}
    for field in fields(table):
        value = getattr(table, field.name)
        if isinstance(value, pa.Table):
            value = (
                str(value.schema),
                [bytes(column.to_numpy(zero_copy_only=False).tobytes()) for column in value.columns if column.type != pa.string()],
            )
        found[field.name] = value
    return found


@pytest.mark.parametrize(("model", "device"), [(LLAMA_8B, A100), (MIXTRAL, H100), (LLAMA_8B, B200)])
def test_a_cached_schedule_equals_an_uncached_one_bit_by_bit(model, device):
    spec, memory = mapping(*SMALL, "[gemm]", "tile = [512, 512, 64]"), Memory()
    plain = compile_mapping(model, device, spec)
    first, second = (compile_mapping(model, device, spec, cache=memory) for _ in range(2))
    assert memory.hits == 1
    for one in (first, second):
        assert bits(one.table) == bits(plain.table)
        assert all(getattr(one.table, name).equals(getattr(plain.table, name), check_metadata=True) for name in TABLES)
        assert (one.decisions, one.plan) == (plain.decisions, plain.plan)


def test_no_other_model_hardware_mapping_or_edition_ever_hits():
    memory, spec = Memory(), mapping(*SMALL)
    compile_mapping(LLAMA_8B, A100, spec, cache=memory)
    first = next(iter(A100.kernels))
    refitted = replace(
        A100, kernels=(replace(first, fit=replace(first.fit, parameters={**first.fit.parameters, "more": 1.0})), *A100.kernels[1:])
    )
    measured = MeasuredKernels(
        family="convolution",
        variant="bf16",
        stack="",
        table="seconds\n1\n",
        name="m.csv",
        digest="sha256:0",
        rows_count=1,
        set_aside_count=0,
    )
    for model, device, other in (
        (replace(LLAMA_8B, hidden_size=2048), A100, spec),
        (LLAMA_8B, H100, spec),
        (LLAMA_8B, replace(A100, clock_hz=A100.clock_hz + 1), spec),
        (LLAMA_8B, refitted, spec),
        (LLAMA_8B, replace(A100, measured=(measured,)), spec),
        (LLAMA_8B, A100, mapping(*SMALL, "[kv]", "block_tokens = 32")),
    ):
        compile_mapping(model, device, other, cache=memory)
    newer = Memory("2")
    newer.kept = dict(memory.kept)
    compile_mapping(LLAMA_8B, A100, spec, cache=newer)
    assert (memory.hits, newer.hits, len(newer.kept)) == (0, 0, 8)


def test_a_setting_of_another_chip_and_the_name_of_a_mapping_do_not_count():
    memory = Memory()
    for text in ('name = "a"\n', 'name = "b"\n[gemm]\n"tile@[chip=h100-sxm]" = [64, 64, 64]\n'):
        compile_mapping(LLAMA_8B, A100, parse_mapping(text + "\n".join(SMALL), "m.toml"), cache=memory)
    assert memory.hits == 1


def test_damaged_foreign_and_renamed_bytes_are_no_table():
    done = compile_mapping(LLAMA_8B, A100, mapping(*SMALL))
    data = pack("key", done.table, done.decisions)
    assert unpack("key", data) is not None
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for key, bad in (
        ("other", data),
        ("key", bytes(flipped)),
        ("key", data[:-1]),
        ("key", data + b"x"),
        ("key", b""),
        ("key", b"PAR1" * 99),
    ):
        assert unpack(key, bad) is None


def test_what_a_cache_lost_or_damaged_is_made_and_kept_again():
    memory, spec = Memory(), mapping(*SMALL)
    plain = compile_mapping(LLAMA_8B, A100, spec, cache=memory)
    [key] = memory.kept
    whole, memory.kept[key] = memory.kept[key], b"not a table"
    again = compile_mapping(LLAMA_8B, A100, spec, cache=memory)
    assert bits(again.table) == bits(plain.table)
    assert memory.kept[key] == whole
