"""The gate's own error rates on a trace and a policy: how often it rolls back what is no worse, releases what is, and sees what it should.

`regressions.py` makes candidates with a known worsening, `pool.py` replays them on draws of the trace's traffic, `rates.py` lets the gate
decide and counts, `check.py` does it for a cell, `document.py` is the record that verdicts cite.
"""
