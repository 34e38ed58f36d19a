"""Student's t and the gamma functions' derivatives against scipy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from gates.statistics.student import digamma, incomplete_beta, inverse_trigamma, t_bound, t_tail, trigamma


@given(t=st.floats(-30, 30), degrees=st.floats(0.5, 1e6))
def test_the_tail_of_students_t_is_scipys(t, degrees):
    assert t_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=3e-8, abs=1e-11)


@pytest.mark.parametrize("degrees", [1, 1.5, 4, 9, 24, 1e3, 1e6, 1e8])
@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.05, 0.025, 1e-4])
def test_a_bound_is_passed_with_probability_alpha(alpha, degrees):
    assert t_bound(alpha, degrees) == pytest.approx(stats.t.isf(alpha, degrees), rel=1e-6, abs=1e-9)


@given(a=st.floats(0.5, 500), b=st.floats(0.5, 500), x=st.floats(0, 1))
def test_the_incomplete_beta_function_is_scipys(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("x", [1e-3, 0.5, 1.0, 2.0, 4.5, 40.0, 1e5])
def test_digamma_and_trigamma_are_scipys_and_the_inverse_leads_back(x):
    assert digamma(x) == pytest.approx(special.digamma(x), rel=1e-12)
    assert trigamma(x) == pytest.approx(special.polygamma(1, x), rel=1e-12)
    assert inverse_trigamma(trigamma(x)) == pytest.approx(x, rel=1e-9)
