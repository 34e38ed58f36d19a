"""Expert loads: the document, and how often a token chooses each expert of a model."""

from dataclasses import replace

import pytest

from replay import documents
from replay.errors import SchemaError, SpecError
from replay.specs.routing import ExpertLoad
from tests.models import DEEPSEEK_V3, MIXTRAL

EXAMPLES = documents.shipped_path("schemas") / "examples"
EVEN = (1.0,) * 8


def test_the_schema_examples_are_valid_and_invalid_and_the_load_round_trips():
    valid = documents.read_json_object(EXAMPLES / "expert-load.v1.valid.json", "load")
    documents.check(valid, "expert-load.v1", "valid")
    assert ExpertLoad.from_document(valid, "valid").to_document() == valid
    invalid = documents.read_json_object(EXAMPLES / "expert-load.v1.invalid.json", "load")
    with pytest.raises(SchemaError, match=r"layers\.0\.1 is -80"):
        documents.check(invalid, "expert-load.v1", "invalid")


@pytest.mark.parametrize(
    "document",
    [{"routing": "recorded", "origin": "x"}, {"routing": "uniform", "origin": "x", "layers": [[1, 1]]}, {"routing": "even", "origin": "x"}],
)
def test_a_recorded_load_has_layers_and_a_uniform_one_has_none(document):
    with pytest.raises(SchemaError):
        documents.check(document, "expert-load.v1", "load.json")


@pytest.mark.parametrize("layers", [[[1, 2], [1, 2, 3]], [[1, 2], [0, 0]]])
def test_layers_that_differ_or_were_never_used_are_refused(layers):
    with pytest.raises(SpecError, match="layer 1 has"):
        ExpertLoad.from_document({"routing": "recorded", "origin": "x", "layers": layers}, "load.json")


def test_a_token_makes_all_its_choices_in_every_layer():
    rates = ExpertLoad(origin="x", layers=((5.0, 3.0, *EVEN[2:]),)).rows_per_token(MIXTRAL)
    assert rates.sum(axis=1) == pytest.approx([2.0])
    assert rates[0, 0] / rates[0, 1] == pytest.approx(5 / 3)
    assert ExpertLoad(origin="x").rows_per_token(MIXTRAL).tolist() == [[0.25] * 8]


def test_one_row_stands_for_all_layers_and_dense_layers_have_none():
    experts = (1.0,) * 256
    assert ExpertLoad(origin="x", layers=(experts,)).rows_per_token(DEEPSEEK_V3).shape == (1, 256)
    assert ExpertLoad(origin="x", layers=(experts,) * 58).rows_per_token(DEEPSEEK_V3).shape == (58, 256)
    with pytest.raises(SpecError, match=r"61 layers of 256 experts; want 58 layers \(or one, for all\)"):
        ExpertLoad(origin="x", layers=(experts,) * 61).rows_per_token(DEEPSEEK_V3)


def test_an_expert_chosen_twice_by_every_token_is_refused():
    with pytest.raises(SpecError, match=r"1\.82 choices of expert 0 by each token in layer 0"):
        ExpertLoad(origin="x", layers=((70.0, *EVEN[1:]),)).rows_per_token(MIXTRAL)


def test_the_digest_is_that_of_the_figures():
    load = ExpertLoad(origin="x", layers=((5, 3),))
    assert load.digest == replace(load, origin="y", layers=((5.0, 3.0),)).digest
    assert len({load.digest, replace(load, layers=((3, 5),)).digest, ExpertLoad(origin="x").digest}) == 3
