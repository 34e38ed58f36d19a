"""ONNX models as operator graphs: FLOPs and bytes against paper and publications, batch laws, fusion, and models that cannot be used."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx", reason="the optional package onnx is not installed")

from onnx import TensorProto, helper

from replay.errors import SpecError
from replay.ingress.onnx_file import is_onnx, read_onnx
from replay.lowering.op_graph import BatchedMatmulShape, ConvolutionShape, MatmulShape, StreamShape, UnknownShape
from tests.onnx_models import Net, conv_net, encoder, light_model, lower, lower_axes, resnet18, save


def flops(graph, batch=1):
    return sum(op.flops(batch) for op in graph.ops)


def moved(graph, batch=1):
    return sum(op.calls_count * op.traffic.total_bytes(op.rows(batch)) for op in graph.ops)


def single(*results_of, **axes):
    """Return the only operator of a net's model."""
    net, *results = results_of
    [op] = lower(net.model(*results), **axes).ops
    return op


# --- FLOPs and bytes, worked by hand -----------------------------------------------------------------------------------------


def test_a_convolution_counts_its_products_pixels_and_weights():
    net = Net()
    op = single(net, net.conv(net.input("x", ["n", 3, 32, 32]), 3, 8, stride=2))
    assert op.flops(5) == 5 * 2 * (16 * 16) * 8 * (3 * 9)
    assert op.traffic.total_bytes(op.rows(5)) == 4 * (5 * (3 * 32 * 32 + 8 * 16 * 16) + 8 * 3 * 9)
    assert op.shape.out_size == (16, 16)


def test_a_depthwise_convolution_has_one_channel_a_filter():
    net = Net()
    op = single(net, net.conv(net.input("x", ["n", 32, 8, 8]), 32, 32, group=32))
    assert op.flops(1) == 2 * 64 * 32 * 9


def test_a_convolution_over_one_axis_is_a_row_of_columns():
    net = Net()
    weights = net.weight(8, 4, 5)
    op = single(net, net.add("Conv", net.input("x", ["n", 4, 100]), weights, dilations=[2], pads=[4, 4], strides=[2]))
    shape = op.shape
    assert (shape.in_size, shape.out_size, shape.kernel, shape.dilation) == ((1, 100), (1, 50), (1, 5), (1, 2))
    assert shape.padding == (0, 4, 0, 4)
    assert op.flops(1) == 2 * 50 * 8 * 4 * 5


@pytest.mark.parametrize(("automatic", "padding"), [("SAME_UPPER", (0, 0, 1, 1)), ("SAME_LOWER", (1, 1, 0, 0)), ("VALID", (0, 0, 0, 0))])
def test_automatic_padding_is_what_the_result_needs(automatic, padding):
    net = Net()
    x = net.input("x", ["n", 4, 8, 8])
    op = single(net, net.add("Conv", x, net.weight(4, 4, 3, 3), auto_pad=automatic, strides=[2, 2]))
    assert op.shape.padding == padding


def test_a_transposed_convolution_is_the_convolution_it_is_the_gradient_of():
    net = Net()
    x = net.input("x", ["n", 16, 10, 10])
    op = single(net, net.add("ConvTranspose", x, net.weight(16, 8, 4, 4), strides=[2, 2], pads=[1] * 4))
    assert op.flops(3) == 3 * 2 * 100 * 16 * 8 * 16
    assert op.traffic.total_bytes(3) == 4 * (3 * (16 * 100 + 8 * 400) + 16 * 8 * 16)
    assert (op.shape.in_size, op.shape.out_size) == ((20, 20), (10, 10))


def test_products_with_weights_have_the_other_sizes_as_rows():
    net = Net()
    op = single(net, net.add("MatMul", net.input("x", ["n", 7, 5, 16]), net.weight(16, 24)))
    assert op.shape == MatmulShape(columns=24, depth=16)
    assert op.rows(2) == 2 * 35
    assert op.traffic.total_bytes(op.rows(2)) == 4 * (70 * (16 + 24) + 16 * 24)


def test_weights_on_the_left_are_weights_too():
    net = Net()
    op = single(net, net.add("MatMul", net.weight(24, 16), net.input("x", ["n", 16, 5])))
    assert op.shape == MatmulShape(columns=24, depth=16)
    assert op.rows(2) == 10


@pytest.mark.parametrize(("flags", "left", "right"), [({}, ("n", 8), (8, 6)), ({"transA": 1, "transB": 1}, (8, "n"), (6, 8))])
def test_gemm_reads_its_operands_in_either_order(flags, left, right):
    net = Net()
    op = single(net, net.add("Gemm", net.input("x", list(left)), net.weight(*right), **flags))
    assert (op.shape, op.rows(9)) == (MatmulShape(columns=6, depth=8), 9)


def test_a_product_of_activations_is_a_batched_one():
    net = Net()
    left, right = net.input("a", ["n", 4, 10, 16]), net.input("b", ["n", 4, 16, 20])
    op = single(net, net.add("MatMul", left, right))
    assert op.shape == BatchedMatmulShape(count=4, rows=10, columns=20, depth=16)
    assert op.flops(3) == 3 * 4 * 2 * 10 * 20 * 16


def test_weights_for_every_matrix_of_a_stack_are_read_once():
    net = Net()
    op = single(net, net.add("MatMul", net.input("x", ["n", 4, 10, 16]), net.weight(4, 16, 20)))
    assert op.flops(3) == 3 * 4 * 2 * 10 * 20 * 16
    assert op.traffic.shared_bytes == 4 * 4 * 16 * 20


@given(
    lead=st.lists(st.sampled_from([(1, 1), (3, 1), (1, 3), (3, 3)]), max_size=3),
    sizes=st.tuples(*[st.integers(1, 6)] * 3),
)
@settings(max_examples=40, deadline=None)
def test_a_matmul_of_any_rank_counts_what_numpy_would_multiply(lead, sizes):
    rows, depth, columns = sizes
    left, right = [*(size for size, _ in lead), rows, depth], [*(size for _, size in lead), depth, columns]
    net = Net()
    graph = lower(net.model(net.add("MatMul", net.input("a", left), net.input("b", right))))
    assert flops(graph) == 2 * np.matmul(np.zeros(left), np.zeros(right)).size * depth


@pytest.mark.parametrize(("equation", "a", "b"), [("bhid,bhjd->bhij", (2, 3, 4), (2, 5, 4)), ("bik,kj->bij", (3, 4), None)])
def test_an_einsum_of_two_operands_is_the_product_it_says(equation, a, b):
    net = Net()
    right = net.input("b", ["n", *b]) if b else net.weight(4, 5)
    op = single(net, net.add("Einsum", net.input("a", ["n", *a]), right, equation=equation))
    expected = 2 * np.einsum(equation, np.zeros((1, *a)), np.zeros((1, *b)) if b else np.zeros((4, 5))).size * 4
    assert op.flops(1) == expected


def test_a_recurrent_layer_multiplies_its_state_step_after_step():
    net = Net()
    steps, size, hidden = 12, 20, 32
    x = net.input("x", [steps, "n", size])
    results = net.add("LSTM", x, net.weight(1, 4 * hidden, size), net.weight(1, 4 * hidden, hidden), hidden_size=hidden, outputs=3)
    graph = lower(net.model(results[0]))
    assert flops(graph, 3) == 3 * steps * 2 * 4 * hidden * (size + hidden)
    state = next(op for op in graph.ops if op.name.endswith("/state"))
    assert (state.calls_count, state.rows(3)) == (steps, 3)
    assert state.traffic.shared_bytes == 4 * 4 * hidden * hidden


def test_the_attention_operator_is_two_products_and_a_softmax():
    net = Net(opset=23)
    query, key, value = (net.input(name, ["n", 4, length, 16]) for name, length in (("q", 10), ("k", 30), ("v", 30)))
    graph = lower(net.model(net.add("Attention", query, key, value)))
    assert [type(op.shape) for op in graph.ops] == [BatchedMatmulShape, StreamShape, BatchedMatmulShape]
    assert flops(graph, 2) == 2 * 2 * (2 * 4 * 10 * 30 * 16)


def test_a_lookup_reads_the_rows_it_takes_and_not_the_table():
    net = Net()
    op = single(net, net.add("Gather", net.weight(50_000, 64), net.input("tokens", ["n", 12], TensorProto.INT64)))
    assert op.shape == StreamShape(kind="embedding", columns=64)
    assert op.traffic.total_bytes(op.rows(2)) == 2 * 12 * (64 * 4 * 2 + 8)


def test_a_slice_reads_what_it_keeps():
    net = Net()
    x = net.input("x", ["n", 100, 8])
    op = single(net, net.add("Slice", x, net.constant([0]), net.constant([10]), net.constant([1])))
    assert op.traffic.read_bytes * op.rows(1) == pytest.approx(4 * 80, rel=1e-9)
    assert op.traffic.shared_bytes == 3 * 8


@pytest.mark.parametrize(("opset", "columns"), [(9, 6 * 7), (13, 6)])
def test_a_softmax_runs_over_flattened_axes_in_old_operator_sets(opset, columns):
    net = Net(opset=opset)
    op = single(net, net.add("Softmax", net.input("x", ["n", 6, 7]), axis=1))
    assert op.shape == StreamShape(kind="softmax", columns=columns)


@pytest.mark.parametrize(
    ("op_type", "weights", "attributes", "columns"),
    [("LayerNormalization", [6], {}, 6), ("InstanceNormalization", [8, 8], {}, 6), ("LpNormalization", [], {"axis": 1}, 8)],
)
def test_a_norm_has_the_elements_that_share_statistics_as_columns(op_type, weights, attributes, columns):
    net = Net()
    op = single(net, net.add(op_type, net.input("x", ["n", 8, 6]), *(net.weight(size) for size in weights), **attributes))
    assert op.shape == StreamShape(kind="norm", columns=columns)


# --- published counts --------------------------------------------------------------------------------------------------------


def test_resnet_18_has_its_published_products_and_weights():
    graph = lower(resnet18())
    assert flops(graph) / 2 == pytest.approx(1.814e9, rel=1e-3)  # 1.8e9 in He et al. 2016, table 1; 1.81 G in torchvision's model table
    weights = sum(
        op.shape.out_channels * op.shape.in_channels * np.prod(op.shape.kernel) if isinstance(op.shape, ConvolutionShape) else 512 * 1000
        for op in graph.ops
        if not isinstance(op.shape, StreamShape)
    )
    assert weights == 11_689_512 - 9_600 - 1_000  # torchvision's parameters without batch norms and the classifier's bias


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("resnet50", 4.09e9),  # torchvision's model table
        ("vgg19", 19.63e9),  # torchvision's model table
        pytest.param("densenet121", 2.83e9, marks=pytest.mark.slow),  # torchvision's model table
        ("squeezenet", 0.35e9),  # version 1.1: torchvision's model table
        ("inception_v1", 1.43e9),  # Sze et al. 2017, table II
    ],
)
def test_a_network_of_the_onnx_package_has_its_published_products(name, products):
    path = light_model(name)
    if not path.is_file():
        pytest.skip(f"this version of onnx does not carry {path.name}")
    graph = lower(read_onnx(path))
    assert flops(graph) / 2 == pytest.approx(products, rel=0.006)
    assert not [op for op in graph.ops if isinstance(op.shape, UnknownShape)]


@pytest.mark.parametrize(
    ("package", "file", "axes", "types"),
    [
        ("magika", "models/standard_v3_3/model.onnx", {}, {"Conv", "MatMul"}),
        ("silero_vad", "data/silero_vad_half.onnx", {"sequence": 576}, {"Conv", "LSTM"}),
    ],
)
def test_a_model_that_a_package_ships_lowers_without_unknown_operators(package, file, axes, types):
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed")
    graph = lower_axes(read_onnx(Path(spec.origin).parent / file), axes)
    assert types <= {op.layer_type for op in graph.ops if op.flops(1)}
    assert not [op.shape.reason for op in graph.ops if isinstance(op.shape, UnknownShape)]


# --- the batch, and other axes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "axes"), [(conv_net(), {}), (resnet18(), {}), (encoder(layers=2), {"sequence": 24})])
def test_flops_follow_the_batch_and_bytes_have_a_fixed_part(model, axes):
    graph = lower(model, **axes)
    assert graph.batch_axis == "batch"
    assert flops(graph, 7) == pytest.approx(7 * flops(graph))
    assert moved(graph, 9) - moved(graph, 8) == pytest.approx(moved(graph, 2) - moved(graph, 1))
    assert moved(graph, 2) < 2 * moved(graph, 1)


@pytest.mark.parametrize(("symbolic", "fixed", "axes"), [(conv_net(), conv_net(5), {}), (encoder(), encoder(), {"sequence": 16})])
def test_a_batch_that_is_set_costs_what_a_symbolic_one_does(symbolic, fixed, axes):
    settled = lower(fixed, **axes, **({"batch": 5} if axes else {}))
    assert settled.batch_axis is None
    graph = lower(symbolic, **axes)
    assert flops(settled) == pytest.approx(flops(graph, 5))
    assert moved(settled) == pytest.approx(moved(graph, 5))


def test_an_encoder_has_the_products_of_its_layers_and_shape_arithmetic_costs_nothing():
    layers, hidden, inner, sequence = 3, 64, 256, 20
    graph = lower(encoder(layers, hidden, 4, inner), sequence=sequence)
    products = 4 * hidden * hidden * sequence + 2 * sequence * sequence * hidden + 2 * hidden * inner * sequence
    assert flops(graph, 2) == pytest.approx(2 * 2 * layers * products)
    assert not {"Shape", "Concat", "Unsqueeze", "Reshape"} & {op.layer_type for op in graph.ops}
    assert [op.layer_type for op in graph.ops].count("Gather") == 1  # the embedding: those of the shapes are folded


def test_the_first_dynamic_axis_carries_the_batch_unless_another_is_named():
    net = Net()
    model = net.model(net.add("Relu", net.input("x", ["height", "images"])))
    assert lower(model, images=3).batch_axis == "height"
    assert lower(model, images="batch", height=3).batch_axis == "images"


def test_axes_without_names_go_by_tensor_and_index():
    net = Net()
    model = net.model(net.add("Add", net.input("x", [None, 4]), net.input("y", [None, 4])))
    with pytest.raises(SpecError, match=r"no size for the dynamic axis y:0 \(the batch is x:0\)"):
        lower(model)
    graph = lower_axes(model, {"x:0": "batch", "y:0": "batch"})
    assert graph.ops[0].traffic.total_bytes(graph.ops[0].rows(3)) == 3 * 4 * 4 * 3


def test_a_declared_batch_can_be_made_dynamic_by_place():
    graph = lower_axes(conv_net(1), {"pixels:0": "batch"})
    assert flops(graph, 4) == flops(lower(conv_net()), 4)


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({}, "no size for the dynamic axis sequence (the batch is batch)"),
        ({"sequnce": 3}, "did you mean 'sequence'?"),
        ({"sequence": 0}, "the size 0; want a whole number from 1 to"),
        ({"sequence": 2**40}, "want a whole number from 1 to"),
        ({"nothing:0": 3, "sequence": 3}, "no axis of that name"),
    ],
)
def test_an_axis_that_is_unset_or_wrong_is_named(axes, says):
    with pytest.raises(SpecError) as caught:
        lower_axes(encoder(), axes)
    assert says in str(caught.value)


def test_a_batch_that_the_export_wrote_into_a_reshape_is_refused():
    net = Net()
    model = net.model(net.add("Reshape", net.add("Relu", net.input("x", ["n", 4, 2])), net.constant([1, 8])))
    with pytest.raises(SpecError, match=r"Reshape\) turns 97 x 4 x 2 into 1 x 8 elements"):
        lower(model)
    assert flops(lower(model, n=1)) == 0


def test_a_size_beside_proportion_to_the_batch_is_refused():
    net = Net()
    model = net.model(net.add("Concat", net.input("x", ["n", 4]), net.weight(1, 4), axis=0))
    with pytest.raises(SpecError, match="98 for a batch of 97 and 102 for 101; want sizes in proportion"):
        lower(model)
    assert moved(lower(model, n=3)) == 4 * 4 * (3 + 1 + 4)


def test_work_that_grows_with_the_square_of_the_batch_is_refused():
    net = Net()
    model = net.model(net.add("MatMul", net.input("x", ["n", 4]), net.input("y", [4, "n"])))
    with pytest.raises(SpecError, match="grows with the square of the batch"):
        lower(model)


def test_an_axis_of_pixels_is_not_taken_for_the_batch():
    net = Net()
    model = net.model(net.conv(net.input("x", [1, 3, "height", 32]), 3, 8, stride=2))
    with pytest.raises(SpecError, match="axis 2 of the tensor"):
        lower(model)


# --- views, fusion, formats --------------------------------------------------------------------------------------------------


def test_views_vanish_and_copies_stay():
    net = Net()
    x = net.add("Relu", net.input("x", ["n", 1, 6, 8]))
    moved_ones = net.add("Transpose", net.add("Unsqueeze", x, net.constant([0])), perm=[1, 0, 2, 3, 4])
    flat = net.add("Reshape", net.add("Dropout", net.add("Identity", moved_ones)), net.constant([-1, 6, 8]))
    graph = lower(net.model(net.add("Transpose", flat, perm=[0, 2, 1], name="turn")))
    assert [op.layer_type for op in graph.ops] == ["Relu", "Transpose"]
    assert graph.op("turn").shape.kind == "transform"
    assert graph.op("turn").inputs == (graph.ops[0].name,)


def test_batch_norm_and_activation_run_in_the_epilogue_of_their_convolution():
    graph, plain = lower(conv_net()), lower(conv_net(), fuse=False)
    assert [op.layer_type for op in graph.ops] == ["Conv", "Conv", "GlobalAveragePool", "Gemm"]
    assert len(graph.ops[0].members) == 3
    assert len(plain.ops) == 8
    assert flops(graph) == flops(plain)
    between = 2 * 2 * 4 * (16 * 16 * 16 + 32 * 16 * 16)  # written and read again after the product and after the norm
    assert moved(plain, 2) - moved(plain, 1) - (moved(graph, 2) - moved(graph, 1)) == between


def test_a_value_that_others_read_or_the_model_gives_is_not_fused_away():
    net = Net()
    first = net.conv(net.input("x", ["n", 4, 8, 8]), 4, 4)
    both = net.add("Add", net.add("Relu", first), first)
    assert [op.layer_type for op in lower(net.model(both)).ops] == ["Conv", "Relu", "Add"]
    assert [op.layer_type for op in lower(net.model(net.nodes[1].output[0], first)).ops][:2] == ["Conv", "Relu"]


def test_one_activation_is_fused_and_no_arithmetic_after_it():
    net = Net()
    value = net.add("Relu", net.add("Add", net.add("MatMul", net.input("x", ["n", 8]), net.weight(8, 8)), net.weight(8)))
    graph = lower(net.model(net.add("Mul", value, net.weight(8))))
    assert [(op.layer_type, len(op.members)) for op in graph.ops] == [("MatMul", 3), ("Mul", 0)]


def quantised_net():
    net = Net()
    scale, zero = net.weight(), net.constant(0, np.int8)
    narrow = net.add("QuantizeLinear", net.input("x", ["n", 16, 8, 8]), scale, zero)
    pixels = net.add("DequantizeLinear", narrow, scale, zero)
    weights = net.add("DequantizeLinear", net.weight(32, 16, 3, 3, element=TensorProto.INT8), scale, zero)
    value = net.add("Relu", net.add("Conv", pixels, weights, pads=[1] * 4))
    return net.model(net.add("DequantizeLinear", net.add("QuantizeLinear", value, scale, zero), scale, zero))


def test_a_product_of_widened_bytes_reads_and_writes_them_narrow():
    graph = lower(quantised_net())
    assert [op.layer_type for op in graph.ops] == ["QuantizeLinear", "Conv", "DequantizeLinear"]
    conv = graph.ops[1]
    assert (conv.weights_format, conv.activations_format) == ("int8", "int8")
    assert conv.traffic.total_bytes(2) == 2 * (16 + 32) * 64 + 32 * 16 * 9
    assert graph.ops[0].activations_format == graph.ops[2].activations_format == "int8"


def test_without_fusion_weights_alone_are_narrow():
    graph = lower(quantised_net(), fuse=False)
    conv = next(op for op in graph.ops if op.layer_type == "Conv")
    assert (conv.weights_format, conv.activations_format) == ("int8", "fp32")
    assert [op.layer_type for op in graph.ops].count("DequantizeLinear") == 2  # pixels and result; that of the weights is folded


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_formats_are_those_of_the_tensors(element):
    graph = lower(encoder(element=element), sequence=8)
    name, size = {TensorProto.FLOAT16: ("fp16", 2), TensorProto.BFLOAT16: ("bf16", 2), TensorProto.DOUBLE: ("fp64", 8)}[element]
    product = graph.op("layer0/up")
    assert (product.weights_format, product.activations_format) == (name, name)
    assert product.traffic.read_bytes == 64 * size


@pytest.mark.parametrize("model", [resnet18(), quantised_net(), conv_net()])
def test_every_operator_has_a_name_of_its_own_and_reads_earlier_ones(model):
    for fuse in (True, False):
        seen: set[str] = set()
        for op in lower(model, fuse=fuse).ops:
            assert op.name not in seen
            assert set(op.inputs) <= seen
            seen.add(op.name)


# --- operators without a kernel ----------------------------------------------------------------------------------------------


def test_an_operator_of_an_unknown_type_is_named_and_costed_by_its_bytes():
    net = Net()
    strange = net.add("Mystery", net.add("Relu", net.input("x", ["n", 6])), net.weight(6), name="odd", domain="acme")
    net.value_info.append(helper.make_tensor_value_info(strange, TensorProto.FLOAT, ["n", 9]))
    graph = lower(net.model(net.add("Relu", strange), domains=["acme"]))
    odd = graph.op("odd")
    assert odd.shape == UnknownShape(reason="no kernel is known for the operator type Mystery (acme)")
    assert odd.traffic.total_bytes(odd.rows(10)) == 4 * (10 * (6 + 9) + 6)


def test_an_unknown_type_whose_result_has_no_shape_is_one_sentence():
    net = Net()
    model = net.model(net.add("Relu", net.add("Mystery", net.input("x", ["n", 6]))))
    with pytest.raises(SpecError, match="'mystery0_out' cannot be told: it is the result of an operator of the unknown type 'Mystery'"):
        lower(model)


def branch(net, op_type, source, width):
    inner = Net()
    result = inner.add(op_type, source, inner.weight(width, 5), name=f"inner{width}")
    inner.weights[0].name = f"inner_w{width}"
    inner.nodes[0].input[1] = f"inner_w{width}"
    return helper.make_graph(inner.nodes, "b", [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)], inner.weights)


def if_net(condition_of):
    net = Net()
    x = net.input("x", ["n", 8])
    condition = condition_of(net, x)
    result = net.add("If", condition, then_branch=branch(net, "MatMul", x, 8), else_branch=branch(net, "Gemm", x, 8), name="fork")
    return net.model(net.add("Relu", result))


def test_a_branch_that_shapes_decide_is_part_of_the_graph():
    model = if_net(lambda net, x: net.add("Equal", net.add("Gather", net.add("Shape", x), net.constant(1)), net.constant(8)))
    graph = lower(model, fuse=False)
    assert [op.layer_type for op in graph.ops] == ["MatMul", "Relu"]
    assert graph.ops[1].inputs == (graph.ops[0].name,)


def test_a_branch_that_the_data_choose_is_costed_by_its_bytes():
    graph = lower(if_net(lambda net, x: net.input("flag", [], TensorProto.BOOL)))
    fork = graph.op("fork")
    assert "the data choose the branch" in fork.shape.reason
    assert fork.traffic.total_bytes(fork.rows(3)) == 4 * (3 * (8 + 5) + 8 * 5) + 1


def test_a_loop_is_costed_by_one_round():
    net = Net()
    x = net.input("x", ["n", 8])
    body = Net()
    step = body.add("Add", "carried", x)
    again = body.add("Identity", "condition")
    values = [("i", TensorProto.INT64, []), ("condition", TensorProto.BOOL, []), ("carried", TensorProto.FLOAT, None)]
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in values]
    outputs = [helper.make_tensor_value_info(again, TensorProto.BOOL, []), helper.make_tensor_value_info(step, TensorProto.FLOAT, None)]
    graph = helper.make_graph(body.nodes, "body", inputs, outputs)
    rounds = net.input("rounds", [], TensorProto.INT64)
    result = net.add("Loop", rounds, "", net.add("Relu", x), body=graph, name="loop")
    net.value_info.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, ["n", 8]))
    loop = lower(net.model(result)).op("loop")
    assert "how often it runs" in loop.shape.reason
    assert loop.traffic.total_bytes(loop.rows(2)) == 2 * 4 * (8 + 8 + 8) + 8  # carried, captured, result; and the rounds


def test_functions_of_the_model_are_part_of_its_graph():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    function = helper.make_function("local", "Dense", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)])
    net = Net()
    result = net.add("Dense", net.input("x", ["n", 8]), net.weight(8, 4), domain="local")
    [op] = lower(net.model(result, domains=["local"], functions=[function])).ops
    assert op.shape == MatmulShape(columns=4, depth=8)


def test_a_size_that_depends_on_the_data_can_be_given():
    net = Net()
    model = net.model(net.add("Relu", net.add("Compress", net.input("x", [9, 4]), net.input("keep", [9], TensorProto.BOOL), axis=0)))
    with pytest.raises(SpecError, match="give one with --axis compress0_out:0=SIZE"):
        lower(model)
    assert lower_axes(model, {"compress0_out:0": 5}).ops[1].traffic.total_bytes(1) * 5 == 2 * 4 * 4 * 5


# --- files -------------------------------------------------------------------------------------------------------------------


def test_a_file_is_told_by_its_first_bytes(tmp_path):
    path = save(conv_net(), tmp_path / "model.bin")
    assert is_onnx(path)
    assert len(read_onnx(path).graph.node) == len(conv_net().graph.node)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not is_onnx(tmp_path / "config.json")
    assert not is_onnx(tmp_path / "absent")
    assert not is_onnx(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert not is_onnx(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the file is empty"),
        (b"\x08\x08\x3a\xff\xff", "it is not a whole ONNX model"),
        (conv_net().SerializeToString()[:-200], "it is not a whole ONNX model"),
        (b"\x08\x08\x42\x04\x0a\x00\x10\x11", "a model without operators"),
        (b"\x08\x08\x3a\x00", "a model that names no operator set"),
    ],
)
def test_a_file_that_is_no_whole_model_is_one_sentence(tmp_path, data, says):
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(SpecError, match=says):
        read_onnx(tmp_path / "model.onnx")


def test_weights_in_a_file_that_is_not_there_are_not_needed(tmp_path):
    model = conv_net()
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    graph = lower(read_onnx(save(model, tmp_path / "model.onnx")))
    assert (flops(graph), moved(graph)) == (flops(lower(conv_net())), moved(lower(conv_net())))


def truncated_weight():
    net = Net()
    model = net.model(net.add("Add", net.input("x", [4]), net.weight(4)))
    model.graph.initializer[0].raw_data = b"\0"
    return model


def swapped_nodes():
    net = Net()
    model = net.model(net.add("Relu", net.add("Neg", net.input("x", [4]))))
    model.graph.node.reverse()
    return model


def one_node(op_type, *inputs, opset=17, **attributes):
    net = Net(opset)
    return net.model(net.add(op_type, *(net.input(f"x{index}", shape) for index, shape in enumerate(inputs)), **attributes))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (one_node("Relu", [2**40]), "has 1099511627776 elements; want sizes from 0 to 2147483647"),
        (one_node("Relu", [2**30] * 3), "at most 2^53 elements"),
        (one_node("MatMul", [3, 4], [5, 6]), "does not fit its operands"),
        (one_node("Conv", [1, 3, 8, 8], [4, 2, 3, 3]), "3 channels meet filters for 2"),
        (one_node("Conv", [1, 3, 8, 8], [4, 3, 3, 3], group=0), "group = 0; want 1 or more groups"),
        (one_node("Relu", [0, 4]), "results with a size of 0 are nothing"),
        (one_node("Split", [3, 4], axis=2), "splits axis 2 of 2"),
        (one_node("MaxPool", [1, 3, 8, 8]), "does not fit its operands"),
        (
            one_node("GroupNormalization", [1, 4, 8], [4], [4], num_groups=0, opset=21),
            "operands or attributes that its type does not allow",
        ),
        (swapped_nodes(), "reads 'neg0_out', which no earlier node gives"),
        (truncated_weight(), "the bytes of the weight 'w0' do not make the shape it declares"),
        (Net().model(Net().add("Constant", value_float=1.0)), "no operator computes anything from an input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_cannot_be_is_one_sentence(model, says):
    if not model.graph.node:
        model.graph.node.append(helper.make_node("Constant", [], ["c"], value_float=1.0))
    with pytest.raises(SpecError) as caught:
        lower(model)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
