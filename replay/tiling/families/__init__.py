"""Kernel families: each prices many shapes at once from physics, a device description and a few calibrated parameters."""
