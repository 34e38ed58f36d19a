"""Result files of serving benchmarks and engines: bytes -> `MeasuredRun`. One module per format family; `reader.py` tells them apart."""
