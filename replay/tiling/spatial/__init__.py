"""Devices that multiply on systolic arrays: tiles, loop orders and dataflows, each shape's fastest.

Open `product.py` first (the door), then `dataflow.py` (what an array does with a tile), `traffic.py` (what moves) and `search.py`.
"""
