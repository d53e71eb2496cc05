"""Some frames of a store, array by array."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ...data import AtomicStore


def samples_of(store: "AtomicStore", count: int) -> list[dict[str, Any]]:
    """Frames spread evenly over a store, the first and the last among them, as plain JSON."""
    import numpy as np

    places = np.unique(np.linspace(0, len(store) - 1, min(count, len(store))).round().astype(int))
    return [{"frame": int(n), "arrays": {key: _facts(values) for key, values in sorted(store[int(n)].items())}} for n in places]


def _facts(values: "np.ndarray") -> dict[str, Any]:
    import numpy as np

    known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    facts: dict[str, Any] = {"dtype": str(values.dtype), "shape": list(values.shape), "unknown": int(values.size - known.size)}
    if known.size:
        facts |= {"least": known.min().item(), "mean": float(known.mean()), "largest": known.max().item()}
    return facts


def text_of(sample: dict[str, Any]) -> str:
    """A frame for people."""
    lines = [f"  frame {sample['frame']}"]
    for key, facts in sample["arrays"].items():
        span = f"{facts['least']:.6g}, {facts['mean']:.6g}, {facts['largest']:.6g}" if "mean" in facts else "nothing is known"
        unknown = f"  {facts['unknown']} unknown" if facts["unknown"] else ""
        lines.append(f"    {key:20} {facts['dtype']}{facts['shape']}  {span}{unknown}")
    return "\n".join(lines)
