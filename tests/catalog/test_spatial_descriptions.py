"""Systolic arrays in accelerator descriptions: the shipped one, and every way a table [spatial] can be wrong."""

from pathlib import Path

import pytest

import replay.catalog.hardware as catalog
from replay.catalog.hardware import hardware_from_document, parse_hardware, read_hardware
from replay.errors import SpecError
from replay.specs.hardware import BUFFERS, DATAFLOWS
from tests.models import round_hardware

TEXT = (Path(catalog.__file__).parent / "hardware" / "tpu-v5e.toml").read_text(encoding="utf-8")
SHARED = "[spatial.buffers.shared]"
TWO_BUFFERS = """[spatial.buffers.inputs]
bytes = { value = 1_000_000, source = "cloud" }

[spatial.buffers.weights]
bytes = { value = 1_000_000, source = "cloud" }

"""
OUTPUTS = TWO_BUFFERS.replace("inputs", "outputs").split("[spatial.buffers.weights]", maxsplit=1)[0]


def test_the_shipped_arrays_are_four_of_128_that_keep_weights_in_place() -> None:
    spatial = read_hardware("tpu-v5e").spatial
    assert spatial is not None
    assert (spatial.arrays_count, spatial.array_rows_count, spatial.array_columns_count) == (4, 128, 128)
    assert spatial.dataflows == ("weight_stationary",)
    assert set(spatial.dataflows) <= set(DATAFLOWS)
    assert set(spatial.buffers) <= set(BUFFERS)


def test_what_is_not_published_of_the_shipped_arrays_is_marked_as_a_stand_in() -> None:
    sources = read_hardware("tpu-v5e").sources
    energies = [key for key in sources if "energy" in key]
    assert len(energies) == 4
    assert all("stand-in: " in sources[key] for key in [*energies, "spatial.folds_overlap"])


def test_a_description_with_arrays_survives_the_document_that_bundles_embed() -> None:
    spec = read_hardware("tpu-v5e")
    assert hardware_from_document(spec.to_document(), "run.json") == spec


def test_a_device_without_arrays_has_the_document_and_digest_of_before() -> None:
    spec = round_hardware()
    assert "spatial" not in spec.to_document()
    assert type(spec).from_document(spec.to_document()) == spec


def test_figures_that_nobody_publishes_may_be_left_out() -> None:
    kept = [line for line in TEXT.splitlines() if "energy" not in line or line.startswith(("energy =", "[sources]"))]
    text = "\n".join(line for line in kept if not line.startswith(("bf16 = { value = 0", "int8 = { value = 0", "bank")))
    spatial = parse_hardware(text, "mine.toml").spatial
    assert spatial is not None
    assert spatial.mac_energy_j == {}
    assert spatial.memory_energy_j_per_byte is None
    assert spatial.buffers["shared"].bytes_per_s is None
    assert parse_hardware(text, "mine.toml").to_document()["spatial"]["buffers"] == {"shared": {"bytes": 2.0**27}}


def test_three_buffers_of_their_own_need_no_shared_one() -> None:
    begin, end = TEXT.index(SHARED), TEXT.index("[spatial.mac_energy_j]")
    spatial = parse_hardware(TEXT[:begin] + TWO_BUFFERS + OUTPUTS + TEXT[end:], "mine.toml").spatial
    assert spatial is not None
    assert set(spatial.buffers) == {"inputs", "weights", "outputs"}


BAD_TABLES = {
    "another peak": ("arrays_count = { value = 4", "arrays_count = { value = 8", "131072 cells at 1.5e+09 Hz do 3.93216e+14 FLOP/s"),
    "another cell": ('cell_format = { value = "bf16"', 'cell_format = { value = "int8"', "matrix_flops_per_s.int8, which is 3.93e+14"),
    "no rate": ('cell_format = { value = "bf16"', 'cell_format = { value = "fp8"', "arrays multiply fp8, for which the device has no rate"),
    "unknown format": ('cell_format = { value = "bf16"', 'cell_format = { value = "bf32"', "spatial.cell_format.value"),
    "unknown dataflow": ('["weight_stationary"]', '["row_stationary"]', "spatial.dataflows.value.0"),
    "no dataflow": ('["weight_stationary"]', "[]", "spatial.dataflows.value"),
    "not a list": ('["weight_stationary"]', '"weight_stationary"', "a list of weight_stationary, output_stationary"),
    "a word for a flag": ("double_buffered = { value = true", 'double_buffered = { value = "yes"', "true or false"),
    "no source": ('array_rows_count = { value = 128, source = "architecture" }', "array_rows_count = { value = 128 }", "'source'"),
    "banks without a rate": ("bank_bytes_per_s", "# ", "spatial.buffers.shared"),
    "picojoules": ("bf16 = { value = 0.59e-12", "bf16 = { value = 0.59", "1 pJ is 1e-12"),
    "unknown buffer": (SHARED, "[spatial.buffers.scratch]", "'scratch'"),
    "a buffer too few": (SHARED, "[spatial.buffers.weights]", "no buffer for inputs, outputs"),
    "a buffer too many": (SHARED, f"{TWO_BUFFERS}{OUTPUTS}{SHARED}", "a shared buffer that no operand uses"),
    "missing figure": ("folds_overlap = ", "# ", "'folds_overlap'"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_one_sentence_that_names_the_place(case: str) -> None:
    old, new, named = BAD_TABLES[case]
    assert old in TEXT
    with pytest.raises(SpecError) as caught:
        parse_hardware(TEXT.replace(old, new, 1), "mine.toml")
    message = str(caught.value)
    assert message.startswith("mine.toml")
    assert named in message
    assert "; want " in message
    assert "Fix: " in message
    assert "\n" not in message


def test_an_embedded_description_is_held_to_the_same_rules() -> None:
    document = read_hardware("tpu-v5e").to_document()
    document["spatial"]["arrays_count"] = 2
    with pytest.raises(SpecError, match=r"^run\.json: hardware: 32768 cells"):
        hardware_from_document(document, "run.json")
