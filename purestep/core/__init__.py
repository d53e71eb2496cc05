"""The pure kernel: what a tree, a state, a transform, a schedule, a hook, a loss and a step are.

Nothing here reads a file, a clock, the environment or a global generator.
"""
