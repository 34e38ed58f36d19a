"""Stage 4, execution: Trace + StepTable -> per-request and per-step tables. Knows no kernel and no threshold."""
