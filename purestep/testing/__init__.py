"""The laws of purestep as functions, for parts that users write: each raises AssertionError, saying which law is broken and where.

Nothing here is needed for training; the tests of purestep's own parts are built on it.
"""

from .comparing import assert_trees_close, assert_trees_equal
from .hook_laws import check_hook
from .symmetry import check_equivariance
from .transform_laws import check_transform

__all__ = ["assert_trees_close", "assert_trees_equal", "check_equivariance", "check_hook", "check_transform"]
