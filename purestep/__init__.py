"""Train PyTorch models with pure functions."""

__version__ = "0.1.0"
