"""Studies: the claims of INTELLECT-2 (arXiv:2505.07291) tested at small scale, each by one command (docs/findings.md).

A study is a table of settings, some seeds, and a function that turns finished runs into intervals and a verdict.
"""
