"""The KV cache of the control plane: the holders of each block, and the prefixes found in them.

`pool` counts the blocks of one group, `prefix` names their contents, `groups` has one policy per kind of group, and `tables`
keeps all groups of a sequence in step.
"""
