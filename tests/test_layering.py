"""The one-way rules: who may import whom, and where printing, the clock and the environment may be touched."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("ingress", "lowering", "tiling", "execution", "assembly")
FLAT = ("errors", "units", "seeds", "provenance", "names", "toml_lines", "documents", "folders", "compiled", "specs", "catalog")
ABOVE_THE_STAGES = (
    "__init__",
    "pipeline",
    "mapping_sheet",
    "mapping_diff",
    "tuning",
    "calibration",
    "quality",
)  # the last looks at kernel models from outside
HEAVY = {"matplotlib", "numpy", "pyarrow", "pandas", "scipy", "numba", "onnx", "sqlalchemy"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ("replay", "gates")
    for path in (ROOT / package).rglob("*.py")
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(module: str, *, at_start: bool = False) -> set[str]:
    """Return the modules that a module imports, everywhere or when it is itself imported; `from a import b` can mean the module a.b."""
    found: set[str] = set()
    for node in loaded_at_start(tree(module)) if at_start else ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            assert node.module
            found |= {full if full in all_names() else node.module for full in (f"{node.module}.{name.name}" for name in node.names)}
    return found


@cache
def all_names() -> frozenset[str]:
    return frozenset(name.removesuffix(".__init__") for name in MODULES)


def loaded_at_start(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run on import: everything outside functions and outside ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other
                yield from loaded_at_start(other)
            continue
        yield child
        yield from loaded_at_start(child)


def breaches(modules: Iterator[str], allowed: object) -> list[str]:
    assert callable(allowed)
    return [f"{module} imports {target}" for module in modules for target in sorted(imports(module)) if not allowed(module, target)]


def of_package(package: str) -> Iterator[str]:
    return (module for module in MODULES if module.split(".")[0] == package)


def stage_of(module: str) -> str | None:
    """Return the stage, `flat`, or None for what stands above the stages."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1] in ABOVE_THE_STAGES:
        return None
    return parts[1] if parts[1] in STAGES else "flat"


def test_the_layout_is_the_one_that_the_rules_are_about() -> None:
    inside = {module.split(".")[1] for module in of_package("replay")}
    assert inside == {*STAGES, *FLAT, *ABOVE_THE_STAGES}


def test_facts_know_neither_judgement_nor_the_command_line() -> None:
    assert breaches(of_package("replay"), lambda _, target: target.split(".")[0] not in ("gates", "click")) == []


def test_a_stage_imports_only_earlier_stages_and_flat_modules() -> None:
    def allowed(module: str, target: str) -> bool:
        if target.split(".", maxsplit=1)[0] != "replay":
            return True
        own, other = stage_of(module), stage_of(target)
        if own is None or other == "flat":
            return True
        return own != "flat" and other is not None and STAGES.index(other) <= STAGES.index(own)

    assert breaches(of_package("replay"), allowed) == []


def test_execution_sees_the_step_table_and_never_kernels() -> None:
    seam = ("replay.tiling.step_table", "replay.tiling.terms")  # the table, and the one rule that joins its terms

    def allowed(_: str, target: str) -> bool:
        return not target.startswith(("replay.lowering", "replay.tiling")) or target in seam

    after_the_seam = (module for module in of_package("replay") if stage_of(module) in ("execution", "assembly"))
    assert breaches(after_the_seam, allowed) == []
    assert breaches(iter(seam), lambda _, target: not target.startswith("replay.") or target in seam) == []


def test_only_the_command_line_imports_click() -> None:
    def allowed(module: str, target: str) -> bool:
        return target.split(".", maxsplit=1)[0] != "click" or module.startswith("gates.cli")

    assert breaches(iter(MODULES), allowed) == []


def test_nothing_below_imports_the_command_line() -> None:
    def allowed(module: str, target: str) -> bool:
        return not target.startswith("gates.cli") or module.startswith("gates.cli")

    assert breaches(iter(MODULES), allowed) == []


def test_imports_run_in_no_circle() -> None:
    waiting = {module: {name for name in imports(module, at_start=True) if name in MODULES} for module in MODULES}
    while ready := [module for module, needed in waiting.items() if not needed & set(waiting)]:
        for module in ready:
            del waiting[module]
    assert waiting == {}


CLOCK = {"time.time", "time.monotonic", "time.perf_counter", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
ENVIRONMENT = {"os.environ", "os.getenv", "os.getcwd", "Path.cwd", "Path.home", "sys.argv", "sys.stdout", "sys.stderr", "sys.stdin"}
CALLS = {"print", "input", "exit", "breakpoint"}


@pytest.mark.parametrize("module", sorted(module for module in MODULES if not module.startswith("gates.cli")))
def test_no_printing_no_logging_no_clock_no_environment_outside_the_command_line(module: str) -> None:
    found = []
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute):
            dotted = ".".join(ast.unparse(node).split(".")[-2:])
            found += [dotted] if dotted in CLOCK | ENVIRONMENT else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append(node.func.id)
    found += sorted(imports(module) & {"logging", "time", "warnings", "random"})
    assert found == []


def test_what_the_command_line_loads_at_start_imports_no_heavy_library() -> None:
    reached, waiting = set(), ["gates.cli.__init__"]
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        targets = imports(module, at_start=True)
        assert not {target.split(".")[0] for target in targets} & HEAVY, module
        for target in targets:
            parents = [".".join(target.split(".")[: depth + 1]) for depth in range(target.count(".") + 1)]
            waiting += [name for parent in parents for name in (parent, f"{parent}.__init__") if name in MODULES]
    assert "replay.errors" in reached


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["gate", "--help"]])
def test_asking_for_help_loads_no_heavy_library(arguments: list[str]) -> None:
    code = f"""
import sys
from gates.cli import main
try:
    main({arguments!r})
except SystemExit as error:
    assert not error.code, error.code
print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stderr.strip() == "[]"
    assert result.stdout
