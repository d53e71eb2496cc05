"""How fast a step is beside other trainers: `python -m tests.benchmarks.speed --workloads tiny --out results`.

One process for each variant, asleep on a pipe; each round wakes them in a new order, so that the noise of the machine falls on all alike.
A figure is the ratio of CPU times within a round; its median comes with a bootstrap interval. All variants start from the same weights,
see the same batches and must end at the same loss, which is checked.

`python -m tests.benchmarks.speed.memory` compares peaks of memory, `python -m tests.benchmarks.speed.first_calls` the time until the
second step is done, with an empty cache of compiled code and with a full one. Peers come with the extra `benchmarks`; a variant whose
package is missing, or which cannot do a workload, is a line that says so.
"""
