"""Calibration: measured kernels -> fitted parameters with their error; and the report of how far a model is off.

Not a stage of the replay: it looks at stage 3 from outside. scipy is needed to fit, never to use a fit.
"""
