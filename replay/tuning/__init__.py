"""Mappings tuned for a trace: candidates of every tiling knob, weighted by how often the trace's steps have their shapes."""
