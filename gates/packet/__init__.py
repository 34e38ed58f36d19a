"""Evidence packets: the files of a verdict, from which anyone checks it and recomputes it."""
