"""A Protocol stands only where there are several implementations; what has one is named by its own type."""

import ast
from pathlib import Path

from gates.checks import CHECKS

GATES = Path(__file__).resolve().parents[2] / "gates"


def protocols():
    """Return the names of the classes of the gate that are Protocols."""
    found = set()
    for path in GATES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
                found.add(node.name)
    return found


def test_the_gates_only_protocol_is_that_of_its_checks_which_are_several():
    assert protocols() == {"Check"}
    assert len(CHECKS) >= 2
