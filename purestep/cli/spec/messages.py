"""What a run says on stderr beside its progress, kept in its directory: `messages.log`, appended to by each attempt."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

MESSAGES = "messages.log"


@contextlib.contextmanager
def kept_messages(run_dir: str) -> Iterator[None]:
    """Keep what this process tells, what purestep logs, and warnings, with the time; no file is made where nothing is said."""
    handler = logging.FileHandler(os.path.join(run_dir, MESSAGES), encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger, show = logging.getLogger("purestep"), warnings.showwarning
    level = logger.level

    def show_and_keep(message: Any, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any) -> None:
        show(message, category, filename, lineno, *more, **named)
        handler.handle(logging.LogRecord("warnings", logging.WARNING, filename, lineno, f"{category.__name__}: {message}", None, None))

    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    warnings.showwarning = show_and_keep
    try:
        yield
    finally:
        warnings.showwarning = show
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
