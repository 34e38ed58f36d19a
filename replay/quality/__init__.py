"""What a mapping's number formats do to the answers: real weights under emulated formats, compared with other formats or with none.

Everything here is NumPy in float32 with values rounded to what a format holds (`elements`, `tensor_formats`), in the places and at the
scopes that a mapping's knobs name (`numerics`).
"""
