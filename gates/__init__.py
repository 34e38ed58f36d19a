"""Judgement: two `Run`s and a plan fixed beforehand -> a verdict, with owner, mitigation and evidence."""
