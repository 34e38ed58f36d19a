"""Codes of findings: the one list that owners' rules are checked against names exactly those that the gate can give."""

import re
from pathlib import Path

from gates.finding import CODES

GATES = Path(__file__).resolve().parents[2] / "gates"
GIVEN = re.compile(r'(?:\bcode=|_finding\(|_invalid\(|_informs\(|_thermal\(|about_runs\()\s*"([a-z][a-z_]+)"')
OF_CLAIMS = {"margin_not_shown", "worsening_not_significant"}
"""Why a claim is undecided; no findings."""


def test_every_code_that_is_given_is_listed_and_every_listed_one_is_given():
    texts = [path.read_text(encoding="utf-8") for path in GATES.rglob("*.py") if path.name != "finding.py" and "render" not in path.parts]
    given = {code for text in texts for code in GIVEN.findall(text)} - OF_CLAIMS
    assert given <= CODES
    everything = "\n".join(texts)
    by_arm = {f"{arm}_overloaded" for arm in ("baseline", "candidate")}
    assert [code for code in sorted(CODES - given - by_arm) if f'"{code}"' not in everything] == []
