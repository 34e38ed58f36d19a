"""The public names of `replay`: what is listed is what there is."""

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import replay


def test_the_list_is_sorted_and_without_repetition() -> None:
    assert list(replay.__all__) == sorted(set(replay.__all__))


@pytest.mark.parametrize("name", replay.__all__)
def test_every_listed_name_exists_and_is_documented(name: str) -> None:
    thing = getattr(replay, name)
    assert inspect.isclass(thing) or inspect.isfunction(thing)
    assert inspect.getdoc(thing)
    assert thing.__name__ == name


def test_nothing_public_is_left_out_of_the_list() -> None:
    for name in replay.__all__:
        getattr(replay, name)
    furniture = {"annotations", "TYPE_CHECKING", "Any"}
    present = {name for name, value in vars(replay).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert present - furniture <= set(replay.__all__)
    assert set(dir(replay)) >= set(replay.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        replay.no_such_name  # noqa: B018


def test_every_error_that_is_raised_on_purpose_is_public() -> None:
    from replay import errors

    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.ReplayError)}
    assert raised <= set(replay.__all__)


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, replay; print(sorted({'numpy', 'pyarrow', 'scipy', 'numba', 'pandas', 'jsonschema'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
