"""`purestep demo`: train a potential on molecules, be killed half-way, resume in a new process, prove that nothing was lost."""
