"""pkb: how well language models write multi-GPU kernels."""

__version__ = "0.1.0"
