"""Which platform bears a workload: traces x models x accelerators x mappings, a shortlist of fleets, and what dominates what."""
