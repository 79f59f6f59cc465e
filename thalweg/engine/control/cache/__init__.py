"""The KV cache as the control plane knows it: who holds which block, and where a prefix may be found.

`pool` counts the blocks of one group, `prefix` names what can be found in them, `groups` has one policy per kind of group, and
`tables` keeps all groups of a sequence in step.
"""
