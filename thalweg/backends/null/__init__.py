"""The null platform: no model, no tensor framework. It measures the cost of the control plane, and replaces a device in tests
and simulations. Two ways to make tokens (`NullOptions.tokens`):

    fixed   always the same token, nothing computed: what is left is the host's own cost
    hash    the hash model: the next token is a hash of every earlier one, read back through the paged cache, so that a
            mixed-up block, a lost or doubled token, a stale prefix or a wrong position gives a wrong token
"""

from thalweg.backends.null.device import NullDevice, SimClock
from thalweg.backends.null.platform import NullOptions, NullPlatform

__all__ = ["NullDevice", "NullOptions", "NullPlatform", "SimClock"]
