"""Which line of a user's code an error or a note is about."""

import traceback

_PACKAGE = __file__.removesuffix("capture/lines.py")


def user_line() -> str:
    """The innermost line that is running and belongs neither to torch nor to this package."""
    return _innermost(traceback.extract_stack())


def line_of(error: BaseException) -> str:
    """The same of the lines that an error came through."""
    return _innermost(traceback.extract_tb(error.__traceback__))


def _innermost(frames: traceback.StackSummary) -> str:
    own = [frame for frame in frames if "/torch/" not in frame.filename and not frame.filename.startswith(_PACKAGE)]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno} ({(frame.line or '').strip()})"
