"""A schedule as a picture made of text."""

from collections.abc import Sequence

from ..core.schedule import Schedule

# Bits of a braille cell, by row from the top and column from the left; U+2800 is the empty cell.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(schedule: Schedule, num_steps: int, width: int = 64, height: int = 10) -> str:
    """Draw a schedule as a curve of braille dots, with its range on the left and the counts below.

    Args:
        num_steps: Counts 0 to `num_steps - 1` are drawn.
        width: Of the curve, in characters of two dots.
        height: Of the curve, in lines of four dots.

    Returns:
        Lines of text without a newline at the end.

    Raises:
        ValueError: If `num_steps` is below 1.
    """
    if num_steps < 1:
        raise ValueError(f"plot: num_steps must be at least 1, got {num_steps}")
    columns = 2 * width
    counts = [column * (num_steps - 1) // max(columns - 1, 1) for column in range(columns)]
    value_at = {count: float(schedule(count)) for count in set(counts)}
    values = [value_at[count] for count in counts]
    lines = _cells(values, width, height)
    labels = [f"{max(values):.3g}", *[""] * (height - 2), f"{min(values):.3g}"] if height > 1 else [f"{max(values):.3g}"]
    margin = max(map(len, labels))
    last = str(num_steps - 1)
    axis = f"{'':{margin}}  0 {last:>{width - 2}}" if num_steps > 1 else f"{'':{margin}}  0"
    return "\n".join([*(f"{label:>{margin}} |{line}" for label, line in zip(labels, lines, strict=True)), axis])


def _cells(values: Sequence[float], width: int, height: int) -> list[str]:
    low, high = min(values), max(values)
    rows = 4 * height
    cells = [[0x2800] * width for _ in range(height)]
    for column, value in enumerate(values):
        from_bottom = round((value - low) / (high - low) * (rows - 1)) if high > low else 0
        row = rows - 1 - from_bottom
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(map(chr, line)) for line in cells]
