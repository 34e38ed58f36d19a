import pytest

from replay.errors import SpecError
from replay.lowering.lower import lower
from replay.lowering.op_graph import ExpertsShape, MatmulShape
from tests.models import LLAMA_8B, MIXTRAL


def matmul_parameters(graph):
    dense = sum(op.shape.columns * op.shape.depth * op.calls_count for op in graph.ops if isinstance(op.shape, MatmulShape))
    grouped = [(op.shape, op.calls_count) for op in graph.ops if isinstance(op.shape, ExpertsShape)]
    return dense + sum(shape.experts_count * shape.expert_weights * calls for shape, calls in grouped)


def test_weights_of_llama_8b_are_its_published_parameter_count():
    embedding = LLAMA_8B.vocabulary_size * LLAMA_8B.hidden_size
    assert matmul_parameters(lower(LLAMA_8B, ranks=1)) + embedding == pytest.approx(8.03e9, rel=0.001)


def test_weights_of_mixtral_are_its_published_parameter_count():
    embedding = MIXTRAL.vocabulary_size * MIXTRAL.hidden_size
    assert matmul_parameters(lower(MIXTRAL, ranks=1)) + embedding == pytest.approx(46.7e9, rel=0.001)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_share_every_weight_exactly(ranks):
    assert matmul_parameters(lower(LLAMA_8B, ranks=ranks)) * ranks == matmul_parameters(lower(LLAMA_8B, ranks=1))


def test_tensor_parallel_ranks_add_two_all_reduces_a_layer_and_one_gather():
    graph = lower(LLAMA_8B, ranks=2)
    collectives = {op.name: op.calls_count for op in graph.ops if op.layer_type == "all_reduce"}
    assert collectives == {"attention_all_reduce": 32, "mlp_all_reduce": 32, "logits_all_gather": 1}
    assert not [op for op in lower(LLAMA_8B, ranks=1).ops if op.layer_type == "all_reduce"]


@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL])
def test_every_operator_reads_only_earlier_ones(model):
    seen: set[str] = set()
    for op in lower(model, ranks=2).ops:
        assert set(op.inputs) <= seen
        seen.add(op.name)


def test_ranks_that_do_not_divide_the_model_are_refused_by_name():
    with pytest.raises(SpecError, match=r"32 attention heads, which 3 ranks cannot share.*Fix: set another parallelism.tensor"):
        lower(LLAMA_8B, ranks=3)
