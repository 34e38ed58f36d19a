"""Accelerator descriptions: the shipped catalog, and a user's own file in the same form (schema `hardware.v1`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay import documents
from replay.catalog.calibration import read_calibration, shipped_calibration
from replay.catalog.measurements import recorded_measurements
from replay.catalog.power import check_power
from replay.catalog.spatial import check_spatial
from replay.documents import Document
from replay.errors import SpecError, nearest
from replay.names import NAME_RULE, is_safe_name
from replay.specs.calibration import CalibrationDocument
from replay.specs.hardware import HardwareSpec, KernelFit
from replay.toml_lines import locate

_FOLDER = Path(__file__).resolve().parent / "hardware"
_WHAT = "an accelerator description (TOML)"


def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped accelerators, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def hardware_file(name: str) -> Path:
    """Return the file of a shipped accelerator."""
    return _FOLDER / f"{name}.toml"


def read_hardware(name_or_path: str | Path) -> HardwareSpec:
    """Return a shipped accelerator by name, or the one described in a TOML file.

    A name wins over a file of the same name; text that ends in ``.toml`` or holds a slash is a path.

    Raises:
        SpecError: no such name or file, or the description cannot be used.
    """
    if isinstance(name_or_path, str) and name_or_path in hardware_names():
        path = hardware_file(name_or_path)
    elif _is_path(name_or_path):
        path = Path(name_or_path)
    else:
        known = hardware_names()
        begun = [name for name in known if name.startswith(str(name_or_path))]  # `h100` is meant for an h100-..., not for an mi100
        raise SpecError(
            "hardware",
            f"unknown accelerator {name_or_path!r}{nearest(str(name_or_path), begun or known)}",
            "one of " + ", ".join(known) + ", or the path of a TOML file",
            "correct the name, or describe the device in a file of its own",
        )
    where = str(path) if path.parent != _FOLDER else path.name
    return parse_hardware(documents.decode(documents.read_bytes(path, _WHAT), where, _WHAT), where, folder=path.parent)


def parse_hardware(text: str, where: str, *, folder: Path = Path()) -> HardwareSpec:
    """Return the accelerator of a TOML text; `where` names it in errors, calibration files are looked for below `folder`.

    Raises:
        SpecError: it is not TOML, violates the schema, holds a figure that is not finite, cites a source it does not list or a
            calibration that is not there.
    """
    spec, like = _description(text, where)
    return replace(spec, kernels=device_kernels(spec, [_calibration(name, _at(where, text, "kernels_like"), folder) for name in like]))


def _description(text: str, where: str) -> tuple[HardwareSpec, tuple[str, ...]]:
    """Return the accelerator without its kernels, and what it names for them."""
    document = documents.parse_toml(text, where)
    _refuse_not_finite(document, text, where)
    documents.check(document, "hardware.v1", where, text)
    _check_name(document["name"], _at(where, text, "name"))
    listed: dict[str, str] = document.pop("sources")
    sources = {key: _source(key, figure, listed, text, where) for key, figure in _figures(document)}
    like = tuple(document.pop("kernels_like"))
    spec = HardwareSpec.from_document({**_values(document), "sources": sources})
    check_spatial(spec, lambda key: _at(where, text, key))
    check_power(spec, lambda key: _at(where, text, key))
    return spec, like


def device_kernels(device: HardwareSpec, like: Sequence[tuple[int, CalibrationDocument]]) -> tuple[KernelFit, ...]:
    """Return the calibrated kernels of a device: its own shipped ones, then what each of `like` adds that is not there yet.

    `like` are (units of the device it was fitted on, calibration); one of the device itself stands before the shipped one.
    """
    own = shipped_calibration(device.name)
    given = [entry for entry in like if entry[1].hardware == device.name]
    others = [entry for entry in like if entry[1].hardware != device.name]
    found: list[KernelFit] = []
    for units_count, document in [*given, *([(device.units_count, own)] if own else []), *others]:
        known = {(kernel.fit.family, kernel.fit.variant) for kernel in found}
        found += [
            KernelFit(hardware=document.hardware, units_count=units_count, fit=fit)
            for fit in document.families
            if (fit.family, fit.variant) not in known
        ]
    return tuple(found)


def with_calibration(device: HardwareSpec, document: CalibrationDocument) -> HardwareSpec:
    """Return the device with the kernels of a calibration before its own ones of the same families and variants."""
    units_count = device.units_count if document.hardware == device.name else read_hardware(document.hardware).units_count
    first = [KernelFit(hardware=document.hardware, units_count=units_count, fit=fit) for fit in document.families]
    known = {(kernel.fit.family, kernel.fit.variant) for kernel in first}
    others = (kernel for kernel in device.kernels if (kernel.fit.family, kernel.fit.variant) not in known)
    return replace(device, kernels=(*first, *others))


def _calibration(name: str, where: str, folder: Path) -> tuple[int, CalibrationDocument]:
    """Return (units, calibration) of a device of the catalog, or of a calibration file."""
    if name.endswith(".json"):
        if not (folder / name).is_file():
            raise SpecError(where, f"kernels_like names {name}, and there is no such file", "a calibration file", "correct the path")
        document = read_calibration(folder / name)
    else:
        shipped = shipped_calibration(name)
        if shipped is None:
            have = [device for device in hardware_names() if shipped_calibration(device)]
            got = f"kernels_like names {name!r}{nearest(name, have)}"
            raise SpecError(where, got, "a calibration file (.json) or one of " + ", ".join(have), "correct the name")
        document = shipped
    path = _FOLDER / f"{document.hardware}.toml"
    if not path.is_file():
        got = f"the calibration {name} is of {document.hardware}, which is not in the catalog"
        raise SpecError(where, got, "a device of the catalog", "take another calibration")
    return _description(path.read_text(encoding="utf-8"), path.name)[0].units_count, document


def hardware_from_document(document: Document, where: str) -> HardwareSpec:
    """Return the accelerator of the JSON form that bundles and run directories embed, held to the same schema as a file.

    Raises:
        SpecError: a figure is missing, unknown, out of range or without a source.
    """
    values, sources = {key: value for key, value in document.items() if value is not None}, document.get("sources")
    kernels = _recorded_kernels(values.pop("kernels", None), f"{where}: hardware")
    measured = recorded_measurements(values.pop("measured", []), f"{where}: hardware")
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise SpecError(f"{where}: hardware", f"sources is {sources!r}"[:80], "the source of each figure", "make it again")
    values.pop("sources")
    figures = {key: {"value": value, "source": "recorded"} for key, value in _leaves(values)}
    if missing := [key for key in figures if key not in sources]:
        raise SpecError(f"{where}: hardware", f"{missing[0]} names no source", "the source of each figure", "make it again")
    written = _described(values, figures)
    written["sources"] = {"recorded": "figures recorded with a replay"}
    documents.check({**written, "kernels_like": []}, "hardware.v1", f"{where}: hardware")
    _check_name(document["name"], f"{where}: hardware")
    spec = HardwareSpec.from_document({**_values(written), "sources": sources, "kernels": kernels, "measured": measured})
    check_spatial(spec, lambda key: f"{where}: hardware")
    check_power(spec, lambda key: f"{where}: hardware")
    return spec


def _recorded_kernels(kernels: object, where: str) -> list[Document]:
    """Return recorded kernels, each held to the schema of calibrations.

    Raises:
        SpecError: they are not what a replay records.
    """
    entries = kernels if isinstance(kernels, list) else None
    if entries is None or not all(isinstance(entry, dict) and set(entry) == {"hardware", "units_count", "fit"} for entry in entries):
        raise SpecError(
            where, "no list of kernels with hardware, units_count and fit", "the kernels that a replay records", "make it again"
        )
    for entry in entries:
        if not isinstance(entry["units_count"], int) or entry["units_count"] < 1:
            raise SpecError(where, f"units_count is {entry['units_count']!r}"[:80], "a whole number >= 1", "make it again")
    families = [entry["fit"] for entry in entries]
    if families:
        calibration = {"schema_version": "1", "hardware": "recorded", "split": "recorded with a replay", "families": families}
        documents.check(calibration, "calibration.v1", f"{where}: kernels")
    return entries


def _leaves(document: Document, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of each figure in a document: what is neither a table nor a bare text at the top."""
    for key, entry in document.items():
        if isinstance(entry, dict):
            yield from _leaves(entry, f"{prefix}{key}.")
        elif prefix or not isinstance(entry, str):
            yield prefix + key, entry


def _described(document: Document, figures: dict[str, Document], prefix: str = "") -> Document:
    """Return a document with each figure as the file form has it: a value and its source."""
    return {
        key: _described(entry, figures, f"{prefix}{key}.") if isinstance(entry, dict) else figures.get(prefix + key, entry)
        for key, entry in document.items()
    }


def _check_name(name: str, where: str) -> None:
    if not is_safe_name(name):
        raise SpecError(where, f"the name {name[:60]!a}", NAME_RULE, "choose another name")


def _is_path(name_or_path: str | Path) -> bool:
    return isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path


def _is_figure(entry: object) -> bool:
    return isinstance(entry, dict) and "value" in entry


def _figures(document: Document, prefix: str = "") -> Iterator[tuple[str, Document]]:
    """Yield (dotted key, figure) for each figure of a description, in file order."""
    for key, entry in document.items():
        if _is_figure(entry):
            yield prefix + key, entry
        elif isinstance(entry, dict):
            yield from _figures(entry, f"{prefix}{key}.")


def _values(document: Document) -> Document:
    """Return the description with each figure replaced by its value."""
    return {
        key: _value(key, entry["value"]) if _is_figure(entry) else _values(entry) if isinstance(entry, dict) else entry
        for key, entry in document.items()
    }


def _value(key: str, value: Any) -> Any:
    """Return a figure's value: numbers as whole ones for counts, else as floats; what is no number as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if key.endswith("_count") else float(value)


def _refuse_not_finite(document: Document, text: str, where: str) -> None:
    for key, figure in _figures(document):
        value = figure["value"]
        if isinstance(value, float) and not math.isfinite(value):
            raise SpecError(_at(where, text, key), f"{key} is {value}", "a finite number", "write the figure, with its source")


def _source(key: str, figure: Document, listed: dict[str, str], text: str, where: str) -> str:
    cited = figure["source"]
    if cited not in listed:
        raise SpecError(
            _at(where, text, key),
            f"{key} cites the source {cited!r}{nearest(cited, listed)}",
            "a key of [sources]: " + ", ".join(listed),
            "list the source, or correct the key",
        )
    return f"{listed[cited]}; {figure['note']}" if "note" in figure else listed[cited]


def _at(where: str, text: str, key: str) -> str:
    line = locate(text, key.split("."))
    return f"{where}:{line}" if line else where
