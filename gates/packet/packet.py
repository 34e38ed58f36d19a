"""The packet: a verdict with all that it rests on, as a folder or a zip, every byte of it accounted for.

::

    replay-out/
    ├── packet.json                  digests of the files beside it, where the traces lay, what computed the verdict; its own digest
    ├── verdict.json                 the verdict
    ├── summary.md report.html       the same for people: in short, and as a page with charts
    ├── verdict.dsse.json            its signature, where it was signed
    └── evidence/                    what `gates.packet.evidence` describes: its manifest lists every file in it

The verdict holds the digest of the evidence's manifest, so that both hang together without the packet's index, too.
"""

from __future__ import annotations

import io
import os
import platform
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_bytes, digest_document

Document = dict[str, Any]
PACKET, VERDICT, SUMMARY, REPORT, SIGNATURE, EVIDENCE, MANIFEST = (
    "packet.json", "verdict.json", "summary.md", "report.html", "verdict.dsse.json", "evidence", "manifest.json",
)  # fmt: skip
SCHEMA_VERSION = "1"
_WANTED = "a packet that `replay gate` wrote: its folder, a zip by --packet, or the verdict.json in it"
_COMPUTED_BY = ("click", "jsonschema", "numba", "numpy", "pyarrow")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: a packet knows no time of day


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """The files of a packet."""

    where: str
    names: frozenset[str]
    """Of the files, relative, with ``/`` between folders."""
    read: Callable[[str], bytes]
    """Returns a file's bytes; raises SpecError where there is no such file or it is empty."""
    is_canonical: bool | None = None
    """Of a zip, whether its bytes are those that `zip_bytes` makes of its files: then no byte of it is unaccounted for."""


def open_packet(path: Path) -> Packet:
    """Return the packet that a folder, a zip or the ``verdict.json`` in a folder means.

    Raises:
        SpecError: it is none.
    """
    if path.is_dir():
        return _folder(path)
    data = documents.read_bytes(path, _WANTED)
    if data.startswith(b"PK"):
        return _zipped(data, str(path))
    if path.name == VERDICT:
        return _folder(path.parent)
    raise SpecError(str(path), "a file of another kind", _WANTED, "name the packet's folder or zip")


def index_bytes(files: Mapping[str, bytes], traces: Iterable[Document]) -> bytes:
    """Return ``packet.json`` for the files beside it [name -> bytes] and the traces ``{name, digest, locator}``."""
    index = {
        "schema_version": SCHEMA_VERSION,
        "environment": environment(),
        "traces": sorted(traces, key=lambda one: (one["name"], one["digest"])),
        "files": file_rows(files),
    }
    return documents.pretty_json({**index, "digest": digest_document(index)}).encode()


def file_rows(files: Mapping[str, bytes]) -> list[Document]:
    """Return files [name -> bytes] as the rows ``{path, sha256, bytes}`` that an index or manifest lists, sorted."""
    return [{"path": name, "sha256": _sha256(data), "bytes": len(data)} for name, data in sorted(files.items())]


def is_intact(row: Mapping[str, Any], data: bytes) -> bool:
    """Return whether bytes are those that a row of an index or manifest lists."""
    return (len(data), _sha256(data)) == (row["bytes"], row["sha256"])


def _sha256(data: bytes) -> str:
    return digest_bytes(data).removeprefix("sha256:")


def environment() -> Document:
    """Return what computes verdicts here: versions of the product, of Python and of the libraries that figures depend on."""
    return {
        "replay_gate": version("replay-gate"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: version(name) for name in _COMPUTED_BY},
    }


def zip_bytes(contents: Mapping[str, bytes]) -> bytes:
    """Return a zip of files: stored, sorted, without times or owners, so that the same files give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Return the files of the packet in a folder, without others that lie there."""
    packet = _folder(folder)
    own = [name for name in packet.names if name in (PACKET, VERDICT, SUMMARY, REPORT, SIGNATURE) or name.startswith(f"{EVIDENCE}/")]
    return {name: packet.read(name) for name in own}


def files_in(path: Path) -> Packet:
    """Return the files of a folder, whether or not a verdict is among them yet."""
    names = frozenset(Path(top, name).relative_to(path).as_posix() for top, _, files in os.walk(path) for name in files)
    return Packet(where=str(path), names=names, read=lambda name: documents.read_bytes(path / name, f"the packet's {name}"))


def _folder(path: Path) -> Packet:
    packet = files_in(path)
    if VERDICT not in packet.names:
        raise SpecError(str(path), f"a folder without {VERDICT}", _WANTED, "name the folder that `replay gate` wrote")
    return packet


def _zipped(data: bytes, where: str) -> Packet:
    fix = "take the packet as it was written"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if sum(entry.file_size for entry in entries) > len(data) or any(entry.compress_type for entry in entries):
                got = "a compressed zip"
                raise SpecError(where, got, "a zip that `replay gate --packet` wrote (stored)", "unpack it, and name the folder")
            contents = {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise SpecError(where, f"a zip that is cut off or damaged ({error})", _WANTED, fix) from error
    if VERDICT not in contents:
        raise SpecError(where, f"a zip without {VERDICT}", _WANTED, fix)

    def read(name: str) -> bytes:
        if not contents.get(name):
            raise SpecError(f"{where}: {name}", "no such file, or an empty one", f"the packet's {name}", fix)
        return contents[name]

    return Packet(where=where, names=frozenset(contents), read=read, is_canonical=zip_bytes(contents) == data)
