"""Runs as data: a spec is JSON, checked in full before anything is imported or started; the only place that names things by string.

`reading.py` finds all that is wrong with a text, `families.py` makes the models of the parts from the signatures of the functions,
`trust.py` says which code a spec may name, and `building.py` makes the objects of a run.
"""
