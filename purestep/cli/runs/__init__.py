"""The commands `purestep runs ...`: directories of runs, listed and compared."""
