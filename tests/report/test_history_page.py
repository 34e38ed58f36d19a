"""The page of a history: its charts hold the released figures, its tables what the text says, and hostile names stay text."""

from __future__ import annotations

import numpy as np
import pytest

from gates.history.chain import History
from gates.history.report import Question, history_report
from gates.policy import DriftBudget
from gates.render.figures import format_value
from gates.render.history import render_history
from gates.report.history import MOST_CHARTS, MOST_POINTS, render_history_page
from tests.history.histories import chained
from tests.report.pages import read_page

AS_OF = "2026-02-01T00:00:00+00:00"


def report_of(history, **question):
    return history_report(history, Question(as_of=AS_OF, **question))


@pytest.fixture(scope="module")
def stepped():
    """Return the report of 24 releases, slower from the 13th on."""
    levels = np.exp(np.random.default_rng(1).normal(0.0, 0.001, 25)) * np.where(np.arange(25) < 13, 1.0, 1.015)
    return report_of(chained(list(levels)), budget=DriftBudget(budget=0.05, anchor=None, max_gap_days=None))


def test_a_chart_holds_every_released_figure_and_the_change_point(stepped):
    [claim] = stepped["cells"][0]["claims"]
    found = read_page(render_history_page(stepped))
    chart = found.one("figure")
    for number, (point, mark) in enumerate(zip(claim["releases"], chart.marks, strict=True), 1):
        figure = format_value(point["candidate"], "s")
        assert mark == f"ttft_s.p99, release {number} at {point['at']}: {figure}, {point['outcome']}"
    assert claim["change_points"]
    table = next(table for table in found.all("table") if table.one("caption").text == "Change points")
    assert table.rows[1][:3] == ["ttft_s.p99", claim["change_points"][0]["at"], f"{100 * claim['change_points'][0]['change']:+.1f} %"]


def test_the_table_says_what_the_text_says(stepped):
    found = read_page(render_history_page(stepped))
    row = next(table for table in found.all("table") if table.one("caption").text == "All claims").rows[1]
    line = next(line for line in render_history(stepped).splitlines() if line.startswith("  ttft_s.p99"))
    assert line.split() == [word for cell in row[:-1] for word in cell.split()]
    assert "24 verdicts, 0 % rollbacks" in found.one("header").text


def test_an_empty_history_and_a_single_release_have_sentences():
    empty = read_page(render_history_page(report_of(History())))
    assert "No verdict is in the history" in empty.one("header").text
    single = read_page(render_history_page(report_of(chained([1.0, 1.001]))))
    assert not single.all("svg")
    assert "Nothing over releases to draw" in single.one("section").text


def test_a_long_history_of_many_cells_stays_small(stepped):
    [cell] = stepped["cells"]
    [claim] = cell["claims"]
    long = {**claim, "releases": [{**claim["releases"][place % 24], "at": f"day {place}"} for place in range(3000)]}
    data = render_history_page({**stepped, "cells": [{**cell, "trace": f"t{place}", "claims": [long]} for place in range(40)]})
    assert len(data) < 1_500_000
    found = read_page(data)
    assert len(found.all("figure")) == MOST_CHARTS
    assert len(found.all("figure")[0].marks) == MOST_POINTS
    assert ", release 3000 at day 2999: " in found.all("figure")[0].marks[-1]


def test_hostile_names_stay_text(stepped):
    name = "</title><script>alert(1)</script>"
    [cell] = stepped["cells"]
    hostile = {**stepped, "cells": [{**cell, "trace": name, "claims": [{**cell["claims"][0], "claim": name}], "undeclared": [name]}]}
    found = read_page(render_history_page(hostile))
    assert len(found.all("script")) == 1
    assert found.one("main").text.count(name) >= 3
