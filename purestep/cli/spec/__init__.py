"""The commands `purestep spec ...`: specs that are checked, described, run and resumed."""
