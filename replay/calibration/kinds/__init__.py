"""Measurement kinds: columns of public kernel timings -> measured sets, units converted at this door."""
