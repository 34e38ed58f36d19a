"""ONNX models -> OpGraph. In order: `walk` (shapes), `tensors` (what follows the batch), `fusion`, rules by operator type, `graph`."""
