"""Going on with a run under another spec: which changes leave it the same run, and which have to be allowed by name."""

from collections.abc import Iterator, Sequence

from .differences import Difference, differences
from .envelope import Spec
from .reading import document_of

_SAFE = ("/output", "/runtime/device", "/runtime/threads", "/name", "/notes", "/$schema")
_SAFE_IF_MORE = ("/strategy/num_steps", "/strategy/num_epochs")


def changes(before: Spec, after: Spec) -> list[Difference]:
    """What the spec of a run and another one say differently."""
    return list(differences(document_of(before), document_of(after)))


def unsafe(found: Sequence[Difference], allowed: Sequence[str] = ()) -> Iterator[Difference]:
    """Those among the differences that make it another run, and are not allowed.

    Args:
        found: The differences.
        allowed: Paths such as `strategy.update`; what stands below one is allowed too.
    """
    pointers = [*_SAFE, *("/" + path.strip("/").replace(".", "/") for path in allowed)]
    for one in found:
        if any(one.pointer == pointer or one.pointer.startswith(f"{pointer}/") for pointer in pointers):
            continue
        if one.pointer in _SAFE_IF_MORE and isinstance(one.before, int) and isinstance(one.after, int) and one.after > one.before:
            continue
        yield one
