"""Stage 1, ingress: bytes -> `Trace`; model metadata -> `ModelSpec`."""
