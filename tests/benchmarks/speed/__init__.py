"""How fast a step is beside other trainers: `python -m tests.benchmarks.speed`.

One process for each variant, asleep on a pipe; each round wakes them in a new order, so that the noise of the machine falls on all alike.
A figure is the ratio of CPU times within a round; its median comes with a bootstrap interval. All variants start from the same weights,
see the same batches and must end at the same loss.
"""
