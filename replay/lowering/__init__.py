"""Stage 2, lowering: ModelSpec -> OpGraph -> fusion, formats, layouts and kernel choice -> `KernelPlan`."""
