"""The commands `purestep data ...`: stores that are looked into, and made of other formats."""
