"""The layers of drafters, declared: a file for each method that runs some. Loads no tensor framework.

`Drafter.declares` names the function of a method: (directory of the checkpoint, `DraftTarget`) -> `DraftModel`. Planning counts
the layers, and the proposer builds them.
"""
