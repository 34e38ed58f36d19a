"""Cause of a rollback: what each knob did, the smallest set to undo, the first failing stage, the bottleneck class, the owner."""
