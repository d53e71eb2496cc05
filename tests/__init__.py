"""A package rather than a bare folder, so that the `tests` which some other distributions install does not stand before it."""
