"""Quality of the answers, judged beside the latencies: paired items of two evaluations against margins."""
