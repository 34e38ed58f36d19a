"""Stage 5, assembly: replayed requests and steps -> metrics by request, layer type and window -> `Run`."""
