"""Paired replicates of modelled runs: both arms replayed again on resampled traffic, under errors of the hardware model.

`replicates.py` is the loop; `stitch.py` draws the traffic, `errors.py` the errors, `doubt.py` says what keeps a claim from a decision.
"""
