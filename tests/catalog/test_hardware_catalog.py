"""The shipped accelerators: figures against their sources, physics of the peaks, and every way a description can be wrong."""

import dataclasses
import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import replay.catalog.hardware as catalog
from replay.catalog.hardware import hardware_names, parse_hardware, read_hardware
from replay.errors import SpecError
from replay.provenance import canonical_json
from replay.specs.hardware import HardwareSpec

NAMES = (
    "a100-pcie-40gb", "a100-sxm-40gb", "a100-sxm-80gb", "a40", "b200-sxm", "h100-sxm", "h200-sxm", "l4", "l40s", "mi100", "mi210", "mi300x",
    "p100-pcie-16gb", "p4", "t4", "tpu-v5e", "v100-pcie-32gb",
)  # fmt: skip
WITHOUT_MATRIX_UNITS = ("p100-pcie-16gb", "p4")
EXAMPLE = (Path(__file__).resolve().parents[2] / "schemas" / "examples" / "hardware.v1.valid.toml").read_text(encoding="utf-8")


def figures(spec: HardwareSpec) -> dict[str, Any]:
    """Return every figure by dotted key: all but the name, the kernels and the sources."""
    bare = {"name", "kernels", "sources"}
    return flat({key: value for key, value in spec.to_document().items() if key not in bare})


def flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in document.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


def table_rows(text: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first Markdown table after a heading, by first cell."""
    from_heading = text[text.index(heading) :].splitlines()
    table = itertools.dropwhile(lambda line: not line.startswith("|"), from_heading)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in itertools.takewhile(lambda line: line.startswith("|"), table)]
    return {row[0]: row[1:] for row in rows}


def number(cell: str) -> float:
    found = re.search(r"[\d.]+", cell)
    assert found, cell
    return float(found.group())


def test_the_catalog_has_the_names_of_the_contract() -> None:
    assert hardware_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source_and_the_record_survives_its_document(name: str) -> None:
    spec = read_hardware(name)
    assert spec.name == name
    assert set(spec.sources) == set(figures(spec))
    assert all(len(text) > 20 for text in spec.sources.values())
    again = HardwareSpec.from_document(spec.to_document())
    assert again == spec
    assert again.digest == spec.digest


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_source_is_cited(name: str) -> None:
    path = Path(catalog.__file__).parent / "hardware" / f"{name}.toml"
    text = path.read_text(encoding="utf-8")
    assert set(tomllib.loads(text)["sources"]) == set(re.findall(r'source = "(\w+)"', text))


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_finite_positive_and_in_the_range_of_real_devices(name: str) -> None:
    spec = read_hardware(name)
    assert all(0 < value < 1e17 for value in figures(spec).values() if isinstance(value, int | float))
    assert spec.cache_bytes > spec.unit_memory_bytes
    assert spec.vector_flops_per_s <= spec.reference_flops_per_s
    # A ridge point of a data-centre device with matrix units lies between tens and hundreds of FLOPs per byte.
    least = 20 if name in WITHOUT_MATRIX_UNITS else 100
    assert least < spec.reference_flops_per_s / spec.memory_bytes_per_s < 500


@pytest.mark.parametrize(
    ("name", "matrix_cores_per_unit", "fma_per_clock", "tolerance"),
    [("a100-sxm-80gb", 4, 256, 1e-3), ("h100-sxm", 4, 512, 1e-3), ("mi300x", 4, 256, 1e-3), ("tpu-v5e", 1, 128 * 128, 3e-3)],
)
def test_the_peak_is_units_times_matrix_cores_times_multiply_adds_times_clock(
    name: str, matrix_cores_per_unit: int, fma_per_clock: int, tolerance: float
) -> None:
    spec = read_hardware(name)
    peak = spec.units_count * matrix_cores_per_unit * fma_per_clock * 2 * spec.clock_hz
    assert spec.reference_flops_per_s == pytest.approx(peak, rel=tolerance)


def test_h200_is_an_h100_with_another_memory() -> None:
    h100, h200 = read_hardware("h100-sxm"), read_hardware("h200-sxm")
    other = figures(h200)
    differing = {key for key, value in figures(h100).items() if other[key] != value}
    assert differing == {"memory_bytes", "memory_bytes_per_s"}
    assert {kernel.hardware for kernel in h200.kernels} == {kernel.hardware for kernel in h100.kernels}
    assert h100.kernels[0].hardware == "h100-sxm"


@pytest.mark.parametrize("name", NAMES)
def test_a_devices_own_kernels_come_first_and_none_comes_twice(name: str) -> None:
    kernels = read_hardware(name).kernels
    devices = [kernel.hardware for kernel in kernels]
    assert devices == sorted(devices, key=list(dict.fromkeys(devices)).index)
    assert name not in devices or devices[0] == name
    by_device: dict[tuple[str, str], set[str]] = {}
    for kernel in kernels:
        by_device.setdefault((kernel.fit.family, kernel.fit.variant), set()).add(kernel.hardware)
    assert all(len(found) == 1 for found in by_device.values())
    assert all(kernel.units_count == read_hardware(kernel.hardware).units_count for kernel in kernels)


def test_a_device_without_native_fp8_has_no_fp8_rate() -> None:
    assert "fp8" not in read_hardware("a100-sxm-80gb").matrix_flops_per_s
    assert "fp8" not in read_hardware("tpu-v5e").matrix_flops_per_s
    assert "fp8" in read_hardware("l40s").matrix_flops_per_s


def test_a_device_without_bf16_arithmetic_says_that_its_rate_is_a_stand_in() -> None:
    for name in ("p100-pcie-16gb", "p4", "t4", "v100-pcie-32gb"):
        assert read_hardware(name).sources["matrix_flops_per_s.bf16"].startswith("stand-in: "), name


DATASHEET_ROWS = {
    "a100-pcie-40gb": "NVIDIA A100 PCIe 40/80GB",
    "a100-sxm-40gb": "NVIDIA A100 SXM4 40GB",
    "a100-sxm-80gb": "NVIDIA A100 SXM4 80GB",
    "a40": "NVIDIA A40",
    "b200-sxm": "NVIDIA B200 SXM",
    "h100-sxm": "NVIDIA H100 SXM5",
    "h200-sxm": "NVIDIA H200 SXM",
    "l4": "NVIDIA L4",
    "l40s": "NVIDIA L40S",
    "mi100": "AMD MI100",
    "mi210": "AMD MI210",
    "mi300x": "AMD MI300X",
    "p100-pcie-16gb": "NVIDIA P100 PCIe 16GB",
    "t4": "NVIDIA T4",
    "tpu-v5e": "Google TPU v5e (chip)",
    "v100-pcie-32gb": "NVIDIA V100 PCIe 32GB",
}  # the P4 is in no shared table
TERA_COLUMNS = {
    0: "matrix_flops_per_s.bf16", 1: "matrix_flops_per_s.fp8", 2: "matrix_flops_per_s.int8", 3: "matrix_flops_per_s.fp4",
    4: "matrix_flops_per_s.tf32", 5: "vector_flops_per_s", 7: "memory_bytes_per_s",
}  # fmt: skip


@pytest.mark.parametrize("name", DATASHEET_ROWS)
def test_peaks_memory_units_and_clock_are_the_datasheets(name: str, shared: Path) -> None:
    text = (shared / "data" / "hardware-datasheets.md").read_text(encoding="utf-8")
    cells = table_rows(text, "## Compute, memory, power")[DATASHEET_ROWS[name]]
    have = figures(read_hardware(name))
    for column, key in TERA_COLUMNS.items():
        if cells[column] in ("-", "?"):
            assert "stand-in" in read_hardware(name).sources.get(key, "stand-in"), key
        else:
            assert have[key] == pytest.approx(number(cells[column]) * 1e12, rel=1e-9), key
    assert have["memory_bytes"] == pytest.approx(number(cells[6]) * 2**30, rel=0.07)  # GB is read as 10^9 or 2^30, as the note says
    assert have["clock_hz"] == pytest.approx(number(cells[12]) * 1e6, rel=1e-9)
    if name != "tpu-v5e":
        assert have["units_count"] == number(cells[9])


def test_an_own_file_is_read_in_the_same_form(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(EXAMPLE, encoding="utf-8")
    spec = read_hardware(str(path))
    assert spec.name == "example-1"
    assert spec == read_hardware(path)
    assert spec.sources["memory_bytes_per_s"] == "made up for this example; a note says what the source alone does not"


def test_an_own_calibration_beside_the_file_is_taken_first(tmp_path: Path) -> None:
    calibration = catalog.shipped_calibration("l40s")
    (tmp_path / "mine.json").write_bytes(canonical_json(calibration.to_document()))
    (tmp_path / "mine.toml").write_text(EXAMPLE.replace('["a100-sxm-80gb"]', '["mine.json", "a100-sxm-80gb"]'), encoding="utf-8")
    kernels = read_hardware(tmp_path / "mine.toml").kernels
    assert [kernel.fit for kernel in kernels if kernel.hardware == "l40s"] == list(calibration.families)
    assert kernels[0].hardware == "l40s"


def test_recorded_kernels_are_held_to_the_schema() -> None:
    recorded = json.loads(canonical_json(read_hardware("l40s").to_document()))
    assert catalog.hardware_from_document(recorded, "run.json") == read_hardware("l40s")
    for damage in (lambda k: k[0].pop("fit"), lambda k: k[0].update(units_count=0), lambda k: k[0]["fit"].pop("error")):
        damaged = json.loads(canonical_json(recorded))
        damage(damaged["kernels"])
        with pytest.raises(SpecError, match=r"run\.json: hardware"):
            catalog.hardware_from_document(damaged, "run.json")


def test_whole_numbers_and_floats_of_the_same_value_give_the_same_digest() -> None:
    whole = parse_hardware(EXAMPLE.replace("value = 32e9", "value = 32_000_000_000"), "mine.toml")
    assert whole.digest == parse_hardware(EXAMPLE, "mine.toml").digest


def test_a_changed_figure_changes_the_digest() -> None:
    spec = read_hardware("l40s")
    assert dataclasses.replace(spec, memory_bytes=spec.memory_bytes + 1).digest != spec.digest


CLOCK = 'clock_hz = { value = 1.5e9, source = "example" }'
BAD_DESCRIPTIONS = {
    "negative": ("value = 1e12, source", "value = -1e12, source", "memory_bytes_per_s"),
    "zero": ("value = 12e12", "value = 0", "vector_flops_per_s"),
    "nan": ("value = 32e9", "value = nan", "memory_bytes is nan"),
    "nested nan": ("value = 400e12", "value = nan", "matrix_flops_per_s.int8 is nan"),
    "not a number": ("value = 1.5e9", 'value = "1.5 GHz"', "clock_hz"),
    "boolean": ("value = 64", "value = true", "units_count"),
    "fractional units": ("value = 64", "value = 64.5", "units_count"),
    "megahertz": ("value = 1.5e9", "value = 1500", "hertz"),
    "gigabytes": ("value = 32e9", "value = 32", "memory_bytes"),
    "beyond floats": ("value = 32e9", "value = 1" + "0" * 400, "memory_bytes"),
    "missing source": (CLOCK, "clock_hz = { value = 1.5e9 }", "'source'"),
    "unknown source": (CLOCK, "clock_hz = { value = 1.5e9, source = \"exampel\" }", "'example'"),
    "bare number": (CLOCK, "clock_hz = 1.5e9", "clock_hz"),
    "no bf16 peak": ("bf16 = { value = 200e12, source = \"example\" }\n", "", "'bf16'"),
    "unknown format": ("int8 = {", "int7 = {", "'int8'"),
    "missing figure": ("units_count = { value = 64, source = \"example\" }\n", "", "'units_count'"),
    "unknown key": ("clock_hz", "clock_ghz", "'clock_ghz'"),
    "empty sources": ("example = \"made up for this example\"", "", "sources"),
    "bad name": ('"example-1"', '"Example 1"', "name"),
    "infinite": ("value = 12e12", "value = inf", "vector_flops_per_s is inf"),
    "microseconds": ("launch_s = { value = 5e-6", "launch_s = { value = 5", "host.launch_s"),
    "idle above the limit": ("idle_w = { value = 50", "idle_w = { value = 300", "draws 300 W while nothing runs"),
    "lowest clock above the full one": ("min_clock_hz = { value = 0.3e9", "min_clock_hz = { value = 1.6e9", "above clock_hz"),
    "too hot when idle": ("throttle_c = { value = 85", "throttle_c = { value = 34", "idles at 34.5 degrees"),
    "half a power section": ("thermal_s = { value = 60, source = \"example\" }\n", "", "'thermal_s'"),
    "unknown kernels": ('["a100-sxm-80gb"]', '["a100"]', "kernels_like names 'a100'"),
    "kernels twice": ('["a100-sxm-80gb"]', '["l40s", "l40s"]', "kernels_like"),
    "missing calibration file": ('["a100-sxm-80gb"]', '["mine.json"]', "mine.json"),
    "not toml": ("[host]", "[host", "TOML"),
    "twice": ("[host]", "[link]", "TOML"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_DESCRIPTIONS)
def test_a_bad_description_is_one_sentence_that_names_the_place(case: str) -> None:
    old, new, named = BAD_DESCRIPTIONS[case]
    assert old in EXAMPLE
    with pytest.raises(SpecError) as caught:
        parse_hardware(EXAMPLE.replace(old, new, 1), "mine.toml")
    message = str(caught.value)
    assert message.startswith("mine.toml")
    assert named in message
    assert "; want " in message
    assert "Fix: " in message
    assert "\n" not in message


def test_the_line_of_a_bad_figure_is_named() -> None:
    line = EXAMPLE.splitlines().index("memory_bytes = { value = 32e9, source = \"example\" }") + 1  # fmt: skip
    for bad in ("nan", "-1"):
        with pytest.raises(SpecError, match=rf"^mine.toml:{line}: memory_bytes"):
            parse_hardware(EXAMPLE.replace("value = 32e9", f"value = {bad}"), "mine.toml")


def test_an_unknown_name_lists_the_nearest_and_all() -> None:
    with pytest.raises(SpecError, match="'h100'; did you mean 'h100-sxm'") as caught:
        read_hardware("h100")
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00", b"   \n"])
def test_a_file_that_is_missing_empty_or_not_text_is_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=re.escape(str(path))):
        read_hardware(str(path))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a folder"):
        read_hardware(tmp_path)
