"""Acceptance scenarios: a change, the traffic it meets and the verdict that the gate should give, as data."""
