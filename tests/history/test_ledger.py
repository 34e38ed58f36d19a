"""The ledger on SQLite and on a real PostgreSQL: what is written is read, once, whoever writes at the same time."""

import importlib.util
import multiprocessing
import sqlite3

import pytest

from gates.history.databases import url_session
from gates.history.ledger import Ledger
from gates.history.rows import rows_of
from replay.errors import SpecError
from tests.history.histories import changed, gate_document, steady
from tests.history.postgres import postgres_server, server_folder
from tests.history.writers import write_all

ROWS = rows_of(gate_document((0, steady(1.0)), (1, steady(1.01))), appended_at="2026-01-01T00:00:00+00:00")
WRITERS, EACH = 3, 6


@pytest.fixture(scope="module")
def postgres_url():
    missing = [name for name in ("sqlalchemy", "psycopg") if importlib.util.find_spec(name) is None]
    programs = server_folder()
    if missing or programs is None:
        pytest.skip(f"no {missing[0] if missing else 'PostgreSQL (initdb)'} here")
    with postgres_server(programs) as url:
        yield url


@pytest.fixture(params=["path", "sqlite url", "postgres"])
def place(request, tmp_path):
    """Return an empty ledger's place on each kind of database."""
    if request.param == "path":
        yield str(tmp_path / "deep" / "history.db")
    elif request.param == "sqlite url":
        pytest.importorskip("sqlalchemy", reason="the extra `history` is not installed")
        yield f"sqlite:///{tmp_path / 'history.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
        yield url
        with url_session(url) as session:
            for table in ("replay_verdicts", "replay_claims"):
                session.run(f"DROP TABLE IF EXISTS {table}")


def numbered(number):
    return changed(ROWS, digest=f"sha256:{number:064x}", appended_at=f"2026-01-01T00:00:{number:02d}+00:00")


def test_what_is_appended_is_read_again(place):
    ledger = Ledger(place=place)
    assert ledger.read() == ((), ())
    assert ledger.append(*ROWS)
    assert ledger.read() == ((ROWS[0],), ROWS[1])


def test_the_same_verdict_twice_is_one(place):
    ledger = Ledger(place=place)
    assert [ledger.append(*ROWS), ledger.append(*changed(ROWS, appended_at="2027-01-01T00:00:00+00:00"))] == [True, False]
    assert ledger.read() == ((ROWS[0],), ROWS[1])


def test_verdicts_come_back_in_the_order_they_were_appended(place):
    for number in (2, 0, 1):
        Ledger(place=place).append(*numbered(number))
    assert [one.digest[-1] for one in Ledger(place=place).read()[0]] == ["0", "1", "2"]


def test_writers_at_the_same_time_lose_nothing_and_double_nothing(place):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(WRITERS)
    shares = [[numbered(writer // 2 * EACH + number) for number in range(EACH)] for writer in range(WRITERS)]  # two write the same ones
    writers = [context.Process(target=write_all, args=(place, share, barrier)) for share in shares]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    verdicts, claims = Ledger(place=place).read()
    assert sorted(one.digest for one in verdicts) == sorted(numbered(number)[0].digest for number in range(2 * EACH))
    assert len(claims) == 2 * EACH * len(ROWS[1])


def test_a_row_says_what_the_verdict_says():
    verdict, (claim,) = ROWS
    assert (verdict.decision, verdict.basis, verdict.tool_version) == ("release", "proven_safe", "1")
    assert (verdict.baseline[-1], verdict.candidate[-1]) == ("0", "1")
    assert (claim.claim_key, claim.trace, claim.hardware, claim.model) == ("ttft_s.p99", "chat", "h100-sxm", "tiny")
    assert claim.change == pytest.approx(0.00995, rel=1e-3)
    assert claim.interval_lower < 1.01 < claim.interval_upper
    assert claim.trace_recorded_at == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "url", ["nonsense://x", "postgresql+psycopg://user:secret@localhost:1/none", "sqlite:////nowhere/at/all.db", "://"]
)
def test_a_database_that_cannot_be_used_is_one_sentence_without_the_password(url):
    pytest.importorskip("sqlalchemy", reason="the extra `history` is not installed")
    with pytest.raises(SpecError) as failure:
        Ledger(place=url).append(*ROWS)
    assert "the history cannot be used" in str(failure.value)
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_url_without_sqlalchemy_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    with pytest.raises(SpecError, match=r"replay-gate\[history\]"):
        Ledger(place="postgresql://localhost/x").read()


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database\n" * 40)
    for use in (lambda: Ledger(place=str(path)).append(*ROWS), Ledger(place=str(path)).read):
        with pytest.raises(SpecError, match="not a database"):
            use()
    assert path.read_text().startswith("these are notes")


def test_a_failed_append_leaves_nothing(tmp_path):
    path = tmp_path / "history.db"
    Ledger(place=str(path)).append(*ROWS)
    verdict, claims = numbered(1)
    with pytest.raises(SpecError):
        Ledger(place=str(path)).append(verdict, (*claims, *claims))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT COUNT(*) FROM replay_verdicts").fetchone() == (1,)
    connection.close()
