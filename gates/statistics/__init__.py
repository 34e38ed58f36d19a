"""Bare statistics over trusted arrays: resampling, intervals, multiplicity, power. Knows no policy and no verdict."""
