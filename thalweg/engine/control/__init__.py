"""The control plane: which sequences run in the next step, on which blocks, and what became of the last one.

Read in this order: `core` (the loop), `scheduler`, `slots` (the state of running sequences, as arrays), `cache` (who
holds which cache block), `batch` (StepBatch out), `output` (StepResult in). Numpy and the standard library only.
"""
