"""Inputs whose answer depends on what it should: shared parts of the problems' ``make_inputs``.

Plain normal data makes some problems undecidable or trivial: a router whose k-th and (k+1)-th probability are equal after
rounding has two right answers, attention over many independent keys is an average near zero, and a constant history never
sets a scale. The helpers here plant an answer, by a margin that rounding cannot bridge.
"""
