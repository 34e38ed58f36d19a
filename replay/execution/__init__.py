"""Stage 4, execution: Trace + StepTable -> per-request and per-step tables. Knows no kernel and no threshold.

Invariants of every replay. Each has a property test that names its number (``Invariant 3``).

1.  Requests are conserved. Each is in one place at every step - not yet arrived, waiting, running or done - and has one row in the
    end, served in full or `never_fits`.
2.  Tokens are conserved. At every step, tokens computed and tokens found in the cache, less those lost to preemptions, are those of
    the requests that run or are done; each output token is emitted once.
3.  Cache blocks are conserved. At every step each block is free or used by the sequences that run, and they use what their tokens need
    (with `reserve`: will need). Within the pool, and all returned in the end.
4.  Causality. arrival <= first scheduled < first token <= finish; and no step depends on what arrives after it was composed.
5.  The clock never goes back, and the steps of a replica do not overlap: of several in a pipeline, in none of its stages.
6.  Work conservation. A server is idle only when nobody is there (or a static batch waits for company), and nobody waits while a step
    has budget, a seat and room left.
7.  Determinism. The same inputs give the same bytes; the order of the trace's rows decides between equal arrivals and nothing else.
8.  Jump = step. A stretch of equal steps that is taken in one jump gives what stepping gives, bit by bit.
9.  Compiled = twin. The compiled loop and the plain Python of `replay.execution.twin` give equal tables, bit by bit.
10. A replayed load can be recorded. Requests written out as an engine's request log and read back give, replayed, the same metrics.
11. Replicas of one = single. A fleet of one replica gives what the replay of one gives, and each replica of a fleet what it alone would
    give for the requests that it was sent.
12. Pools. What prefill replicas do depends on nothing behind them, and nothing is decoded before its cache has come.
13. A replay reads like a measurement. The table of a run's requests, written in any generic form and read back as a measured result, has
    the run's metrics.
"""
