"""Where frames come from: files and objects of other programs, as records in their own names and units.

What a record becomes is in `../conversion.py`.
"""

from .opening import records
from .record import Record

__all__ = ["Record", "records"]
