"""From a pure step to a fast one: capture as one graph, compile, reuse memory. Results are those of the step itself.

Nothing of this leaks into transforms or hooks.
"""

from .compiled import Compiled, compile
from .graph import CaptureRecord

__all__ = ["CaptureRecord", "Compiled", "compile"]
