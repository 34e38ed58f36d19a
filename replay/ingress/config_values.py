"""Values of one configuration file: each is checked where it is read, and errors name the file and the field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from replay.errors import SpecError, nearest

LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of one file, with errors that name it."""

    config: Mapping[str, Any]
    where: str

    def bad(self, field: str, wanted: str, fix: str = "correct the field") -> SpecError:
        """Return the error about the value of a field."""
        if field not in self.config:
            return SpecError(f"{self.where}: {field}", "the field is missing", wanted, "add it")
        shown = repr(self.config[field])
        return SpecError(f"{self.where}: {field}", f"the value {shown if len(shown) <= 40 else shown[:37] + '...'}", wanted, fix)

    def size(self, field: str, default: int | None = None) -> int:
        """Return a positive whole number."""
        if self.config.get(field) is None and default is not None:
            return default
        return self.count(field, least=1)

    def count(self, field: str, *, least: int = 0) -> int:
        """Return a whole number from `least` on."""
        value = self.config.get(field)
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.bad(field, f"a whole number from {least} to {LARGEST}")
        return value

    def check_known(self, known: Collection[str]) -> None:
        """Raise SpecError where the file has a field that is not known: it may change the computation."""
        for field in self.config:
            if field not in known:
                got = f"unknown field {field!r}{nearest(field, sorted(known))}"
                fix = "correct it, or remove it if it has none"
                raise SpecError(f"{self.where}: {field}", got, "only fields whose effect is known", fix)

    def flag(self, field: str) -> bool:
        """Return a boolean, false where it is absent or null."""
        value = self.config.get(field, False)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.bad(field, "true or false")
