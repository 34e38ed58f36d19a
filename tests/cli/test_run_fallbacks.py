"""`replay run` says on stderr what a mapping asks for and does not get."""


def test_a_run_says_what_its_mapping_asks_for_and_does_not_get(project):
    project.replay("trace", "slice", "trace.parquet", "--max-requests", "100", "--out", "small.parquet")
    project.write("huge.toml", 'name = "huge"\n[gemm]\ntile = [100000, 128, 64]\n')
    result = project.replay("run", "--mapping", "huge.toml", "--trace", "small.parquet", "--out", "huge-run")
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "gemm.tile" in line]
    assert "asks for 100000x128x64 and gets" in line
    assert not project.replay("run", "--mapping", "mapping.toml", "--trace", "small.parquet", "--out", "plain-run").stderr
