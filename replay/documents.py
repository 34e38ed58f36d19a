"""Documents that people write: read them, check them against ``schemas/``, say exactly where one is wrong.

Also the only writer of files (of whole folders: `replay.folders`): whatever is written appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from replay.errors import SchemaError, SpecError, nearest
from replay.toml_lines import locate

Document = dict[str, Any]


def shipped_path(kind: str) -> Path:
    """Return the folder of shipped data of a kind (``schemas`` or ``traces``): in the wheel, else at the repository's top level."""
    package = Path(__file__).resolve().parent
    installed = package / "_shipped" / kind
    return installed if installed.is_dir() else package.parent / kind


def read_bytes(path: Path, what: str) -> bytes:
    """Return a file's bytes.

    Raises:
        SpecError: it does not exist, is not a file, cannot be read or is empty.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise SpecError(str(path), "no such file", what, "check the path") from error
    except IsADirectoryError as error:
        raise SpecError(str(path), "a folder", what, "name a file inside it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(str(path), f"it cannot be read ({reason})", what, "check its name and permissions") from error
    if not data.strip():
        raise SpecError(str(path), "the file is empty", what, "write it, or check how it was produced")
    return data


def decode(data: bytes, where: str, what: str) -> str:
    """Return UTF-8 text without a byte-order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(where, f"byte {error.start} is not UTF-8", f"{what} in UTF-8", "save it as UTF-8") from error


def parse_toml(text: str, where: str) -> Document:
    """Return the TOML document of a text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(where, f"it is not valid TOML ({error})", "a TOML document", "mend the line named") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of brackets
        raise SpecError(where, "a number too long or a value nested too deeply", "a TOML document", "mend it") from error


def parse_json(text: str, where: str) -> Any:
    """Return the JSON value of a text; NaN, Infinity and duplicate keys are errors, as in strict JSON."""
    try:
        return json.loads(text, parse_constant=partial(_refuse_constant, where), object_pairs_hook=partial(_unique_keys, where))
    except json.JSONDecodeError as error:
        at = f"{where}:{error.lineno}"
        raise SpecError(at, f"it is not valid JSON ({error.msg})", "a JSON document", "mend or re-export the file") from error
    except ValueError as error:  # an integer of thousands of digits
        raise SpecError(where, "a number of thousands of digits", "a JSON document", "check how it was produced") from error
    except RecursionError as error:
        raise SpecError(where, "it is nested too deeply", "a JSON document", "check how it was produced") from error


def read_toml(path: Path, what: str) -> Document:
    """Return the TOML document in a file."""
    return parse_toml(decode(read_bytes(path, what), str(path), what), str(path))


def read_json_object(path: Path, what: str) -> Document:
    """Return the JSON object in a file."""
    document = parse_json(decode(read_bytes(path, what), str(path), what), str(path))
    if not isinstance(document, dict):
        raise SpecError(
            str(path), f"a JSON {type(document).__name__} at the top", f"{what}, which is an object", "check that it is the right file"
        )
    return document


def load_schema(name: str) -> Document:
    """Return the shipped schema `name` (``mapping.v1``)."""
    path = shipped_path("schemas") / f"{name}.schema.json"
    schema: Document = json.loads(path.read_text(encoding="utf-8"))
    return schema


def check(document: Any, schema_name: str, where: str, text: str | None = None) -> None:
    """Check a document against a shipped schema; one violation becomes one sentence: an unknown version first, outer ones before inner.

    `text` is the TOML source, used to name the line.

    Raises:
        SchemaError: the document violates the schema.
    """
    import jsonschema

    schema = load_schema(schema_name)
    validator = jsonschema.Draft202012Validator(schema)
    errors = sorted(validator.iter_errors(document), key=_precedence)
    if errors:
        raise _schema_error(errors[0], where, text)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole or not at all (a temporary file beside it, then a rename); parents are made.

    Raises:
        SpecError: a folder is in its place, or it cannot be written.
    """
    _refuse_folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".fresh.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise not_writable(path, error) from error


def write_json(path: Path, document: Any) -> None:
    """Write a document as readable strict JSON in its own key order."""
    write_atomic(path, pretty_json(document).encode())


def check_file_place(path: Path) -> None:
    """Refuse, before long work, a file that `write_atomic` could not write.

    Raises:
        SpecError: a folder is in its place, or it cannot be written.
    """
    _refuse_folder(path)
    check_writable(path)


def _refuse_folder(path: Path) -> None:
    if os.path.isdir(path):
        raise SpecError(str(path), "a folder of that name", "a file to write", "move it away, or choose another place")


def check_writable(path: Path) -> None:
    """Refuse, before long work, a file or folder that could not be written afterwards; nothing is left behind.

    Raises:
        SpecError: its nearest folder that exists is none, or takes no files.
    """
    folder = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path.absolute().parent)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)  # a name that is too long is no name here
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".fresh.")
        os.close(handle)
        os.unlink(temporary)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise not_writable(path, error) from error


def not_writable(path: Path, error: OSError | ValueError) -> SpecError:
    """Return what a failure of the file system while writing means to people."""
    reason = error.strerror if isinstance(error, OSError) else None
    return SpecError(str(path), f"it cannot be written ({reason or error})", "a place to write to", "choose another place")


def pretty_json(document: Any) -> str:
    """Return readable strict JSON (two spaces, no NaN, a newline at the end)."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _refuse_constant(where: str, constant: str) -> None:
    raise SpecError(where, f"the value {constant}", "finite numbers (strict JSON)", "write null where a value is missing")


def _unique_keys(where: str, pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise SpecError(where, f"the key {repeated!r} twice in one object", "each key once", "remove one of them")
    return document


def _precedence(error: Any) -> tuple[bool, int, list[str]]:
    """Return what violations are sorted by; that a document is of another version explains every other one."""
    path = [str(key) for key in error.absolute_path]
    return path != ["schema_version"], len(path), path


def _schema_error(error: Any, where: str, text: str | None) -> SchemaError:
    path = list(error.absolute_path)
    line = locate(text, path) if text is not None else None
    name = ".".join(str(key) for key in path) or "the document"
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        patterns = list(error.schema.get("patternProperties", {}))
        extra = next(key for key in error.instance if key not in known and not any(re.search(p, key) for p in patterns))
        if text is not None:
            line = locate(text, [*path, extra]) or line
        place = f"{where}:{line}" if line else where
        within = f" in {name}" if path else ""
        want = "one of " + ", ".join(sorted(known)) if known else "no such key"
        return SchemaError(place, f"unknown key {extra!r}{within}{nearest(extra, known)}", want, "correct or remove the key")
    place = f"{where}:{line}" if line else where
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return SchemaError(place, f"{name} has no {missing!r}", f"the key {missing!r}", "add it")
    found = json.dumps(error.instance, default=str)
    found = found if len(found) <= 60 else found[:57] + "..."
    return SchemaError(place, f"{name} is {found}", _wanted(error), "correct the value")


def _wanted(error: Any) -> str:
    rule, value = error.validator, error.validator_value
    described = error.schema.get("x-want")
    if described:
        return str(described)
    match rule:
        case "enum":
            return "one of " + ", ".join(json.dumps(option) for option in value)
        case "const":
            return json.dumps(value)
        case "type":
            return "a value of type " + (" or ".join(value) if isinstance(value, list) else str(value))
        case "minimum" | "exclusiveMinimum":
            return f"a number {'>=' if rule == 'minimum' else '>'} {value}"
        case "maximum" | "exclusiveMaximum":
            return f"a number {'<=' if rule == 'maximum' else '<'} {value}"
        case "minItems" | "minProperties":
            return f"at least {value} of them"
        case "minLength":
            return "a text that is not empty"
        case "pattern":
            return error.schema.get("description") or f"a text of the form {value}"
        case _:
            return error.schema.get("description") or f"{rule} {json.dumps(value)}"[:200]
