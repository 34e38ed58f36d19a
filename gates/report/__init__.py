"""The page of a verdict or a run: one file that looks the same offline and attached to a ticket, made from a packet alone."""
