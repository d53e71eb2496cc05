"""The commands `purestep debug ...`: how a step is captured, and what happens inside of one."""
