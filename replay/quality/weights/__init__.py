"""Weights of real checkpoints, read from their files."""
