"""Moments that ages are counted from."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from replay.errors import SpecError


def moment(option: str | None, committed: str | None = None) -> str:
    """Return the ISO moment of an option, else `committed`, else SOURCE_DATE_EPOCH, else now.

    Raises:
        SpecError: the option is no time.
    """
    from gates.checks.ages import parse_time

    if option is not None:
        try:
            return parse_time(option).isoformat()
        except ValueError as error:
            raise SpecError("--as-of", f"it is {option!r}", "an ISO time such as 2026-01-31T12:00:00+00:00", "correct the time") from error
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if committed is None and epoch.isdigit():
        return datetime.fromtimestamp(int(epoch), UTC).isoformat()
    return committed or datetime.now(UTC).isoformat(timespec="seconds")
