"""The control plane: it chooses the sequences and blocks of each step, and applies the results.

Read in this order: `core` (the loop), `scheduler`, `slots` (the state of running sequences, as arrays), `cache` (ownership of
cache blocks), `batch` (StepBatch out), `output` (StepResult in). Numpy and the standard library only.
"""
