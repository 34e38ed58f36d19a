"""Stage 3, tiling: KernelPlan x HardwareSpec -> tiles, waves, placement, traffic -> `StepTable`."""
