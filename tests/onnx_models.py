"""Small ONNX models for tests, made with `onnx.helper`; weights have shapes and no values."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from replay.lowering.onnx_graph.graph import lower_onnx

SMALL_ELEMENTS = 4096
"""Weights up to here get values, since a reader may look at them."""


class Net:
    """Collects nodes and weights of one graph; every method returns the name of a result."""

    def __init__(self, opset=17, element=TensorProto.FLOAT):
        self.opset, self.element = opset, element
        self.nodes, self.weights, self.inputs, self.value_info = [], [], [], []

    def input(self, name, shape, element=None):
        self.inputs.append(helper.make_tensor_value_info(name, element or self.element, shape))
        return name

    def weight(self, *shape, element=None):
        name = f"w{len(self.weights)}"
        tensor = TensorProto(name=name, dims=shape, data_type=element or self.element)
        if np.prod(shape) <= SMALL_ELEMENTS:
            tensor.raw_data = bytes(int(np.prod(shape)) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
        self.weights.append(tensor)
        return name

    def constant(self, values, dtype=np.int64):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def add(self, op_type, *inputs, name=None, outputs=1, **attributes):
        name = name or f"{op_type.lower()}{len(self.nodes)}"
        results = [f"{name}_out" + (str(index) if outputs > 1 else "") for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), results, name=name, **attributes))
        return results[0] if outputs == 1 else results

    def conv(self, source, channels, filters, kernel=3, *, stride=1, padding=None, group=1, name=None):
        weights = self.weight(filters, channels // group, kernel, kernel)
        edge = kernel // 2 if padding is None else padding
        return self.add("Conv", source, weights, name=name, strides=[stride] * 2, pads=[edge] * 4, group=group)

    def norm_relu(self, source, channels):
        return self.add("Relu", self.batch_norm(source, channels))

    def batch_norm(self, source, channels):
        return self.add("BatchNormalization", source, *(self.weight(channels) for _ in range(4)))

    def model(self, *results, domains=(), functions=()):
        outputs = [helper.make_tensor_value_info(name, self.element, None) for name in results]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.weights, value_info=self.value_info)
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


def lower(model, fuse=True, **axes):
    """Return the graph of a model; axes with a colon in their name go through `lower_axes`."""
    return lower_onnx(model, where="model.onnx", axes=axes, fuse=fuse)


def lower_axes(model, axes, fuse=True):
    return lower_onnx(model, where="model.onnx", axes=axes, fuse=fuse)


def save(model, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def conv_net(batch="batch"):
    """Return two convolutions with batch norm and activation, pooling, and a classifier over 10 classes; 32 x 32 pixels."""
    net = Net()
    pixels = net.input("pixels", [batch, 3, 32, 32])
    first = net.norm_relu(net.conv(pixels, 3, 16, stride=2, name="first"), 16)
    second = net.norm_relu(net.conv(first, 16, 32, name="second"), 32)
    pooled = net.add("Flatten", net.add("GlobalAveragePool", second))
    return net.model(net.add("Gemm", pooled, net.weight(10, 32), net.weight(10), name="classifier", transB=1))


def resnet18(batch="batch"):
    """Return ResNet-18 for 224 x 224 pixels (He et al. 2016, table 1)."""
    net = Net()
    value = net.norm_relu(net.conv(net.input("pixels", [batch, 3, 224, 224]), 3, 64, 7, stride=2), 64)
    value = net.add("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and width > 64 else 1
            inner = net.norm_relu(net.conv(value, channels, width, stride=stride), width)
            inner = net.batch_norm(net.conv(inner, width, width), width)
            if channels != width:
                value = net.batch_norm(net.conv(value, channels, width, 1, stride=stride), width)
            value, channels = net.add("Relu", net.add("Add", inner, value)), width
    pooled = net.add("Flatten", net.add("GlobalAveragePool", value))
    return net.model(net.add("Gemm", pooled, net.weight(1000, 512), net.weight(1000), transB=1))


def encoder(layers=1, hidden=64, heads=4, inner=256, vocabulary=1000, element=TensorProto.FLOAT):
    """Return a transformer encoder over [batch, sequence] tokens as exporters write it, with shapes computed in the graph."""
    net = Net(element=element)
    tokens = net.input("tokens", ["batch", "sequence"], TensorProto.INT64)
    value = net.add("Gather", net.weight(vocabulary, hidden), tokens, name="embedding")
    for layer in range(layers):
        value = _attention_block(net, tokens, value, hidden, heads, f"layer{layer}")
        widened = net.add("MatMul", value, net.weight(hidden, inner), name=f"layer{layer}/up")
        active = net.add("Gelu" if net.opset >= 20 else "Relu", net.add("Add", widened, net.weight(inner)))
        narrowed = net.add("MatMul", active, net.weight(inner, hidden), name=f"layer{layer}/down")
        value = _normed(net, net.add("Add", net.add("Add", narrowed, net.weight(hidden)), value), hidden)
    return net.model(value)


def _attention_block(net, tokens, value, hidden, heads, prefix):
    sizes = net.add("Shape", tokens)
    batch, sequence = (net.add("Unsqueeze", net.add("Gather", sizes, net.constant(axis)), net.constant([0])) for axis in (0, 1))
    split = net.add("Concat", batch, sequence, net.constant([heads]), net.constant([hidden // heads]), axis=0)
    joined = net.add("Concat", batch, sequence, net.constant([hidden]), axis=0)
    parts = []
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        projected = net.add("Add", net.add("MatMul", value, net.weight(hidden, hidden), name=f"{prefix}/{part}"), net.weight(hidden))
        parts.append(net.add("Transpose", net.add("Reshape", projected, split), perm=order))
    scores = net.add("Div", net.add("MatMul", parts[0], parts[1], name=f"{prefix}/scores"), net.weight())
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1, name=f"{prefix}/softmax"), parts[2], name=f"{prefix}/mix")
    mixed = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    projected = net.add("Add", net.add("MatMul", mixed, net.weight(hidden, hidden), name=f"{prefix}/output"), net.weight(hidden))
    return _normed(net, net.add("Add", projected, value), hidden)


def _normed(net, value, hidden):
    return net.add("LayerNormalization", value, net.weight(hidden), net.weight(hidden), axis=-1)


def light_model(name):
    """Return the path of a network without trained weights that the package `onnx` carries for its own tests."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
