"""The driver of a run: what is to do, in which order, and what came of it. Knows no torch."""
