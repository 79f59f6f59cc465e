"""Limits of connections, in total and by address, and the choice of one to close for a new one.

A connection is idle without a whole request: it has sent nothing, or a part of one, or has had its answer. Closing it loses no
work. With too many connections the one idle longest is closed, and the new one stays.

- An address may have SHARE times as many connections as are free (the dynamic thresholds of Choudhury and Hahne, 1998): one
  address never has all.
- Where none is idle, a few more are accepted for probes. They get an answer to a probe, and any other request is refused.

Knows no bytes and no routes.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from typing import Protocol

SHARE = 8
"""Connections of one address for each free one: at most 8/9 of all."""
MOST_PROBES = 64
"""Connections beyond the limit."""


class RegisteredConnection(Protocol):
    def give_way(self) -> None:
        """Close: no work is lost. `ConnectionRegistry.leave` was called, or is called now."""


class ConnectionRegistry:
    """The connections of one server."""

    def __init__(self, most: int) -> None:
        self.most, self.probes = most, max(2, min(MOST_PROBES, most // 8))
        """Connections that may ask anything, and those beyond that may ask for probes."""
        self._addresses: dict[RegisteredConnection, str] = {}
        """Of those that may ask anything."""
        self._counts: dict[str, int] = {}
        self._idle: dict[RegisteredConnection, None] = {}
        """Those without a request, idle longest first."""
        self._of: dict[str, dict[RegisteredConnection, None]] = {}
        """The same, by address."""
        self._extra: dict[RegisteredConnection, str] = {}
        """Those that may only ask for probes, the oldest first, with their addresses."""

    def __len__(self) -> int:
        return len(self._addresses) + len(self._extra)

    def enter(self, member: RegisteredConnection, host: str) -> bool:
        """Somebody has connected, and is idle. host: its address. May it ask anything? If not, it may ask for probes."""
        address = neighbourhood(host)
        if not self._fits(address) and not self._make_way(address):
            if len(self._extra) >= self.probes:
                next(iter(self._extra)).give_way()
            self._extra[member] = address
            return False
        self._add(member, address)
        return True

    def admit(self, member: RegisteredConnection) -> bool:
        """One that could only ask for probes asks for something else. Is there a place for it now?"""
        address = self._extra[member]
        if not self._fits(address) and not self._make_way(address):
            return False
        del self._extra[member]
        self._add(member, address)
        return True

    def leave(self, member: RegisteredConnection) -> None:
        self._extra.pop(member, None)
        address = self._addresses.pop(member, None)
        if address is None:
            return
        self._forget_idle(member, address)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def busy(self, member: RegisteredConnection) -> None:
        """It has a whole request."""
        address = self._addresses.get(member)
        if address is not None:
            self._forget_idle(member, address)

    def idle(self, member: RegisteredConnection) -> None:
        """Its request has been answered."""
        address = self._addresses.get(member)
        if address is not None:
            self._idle[member] = None
            self._of.setdefault(address, {})[member] = None

    def _add(self, member: RegisteredConnection, address: str) -> None:
        self._addresses[member] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self.idle(member)

    def _fits(self, address: str) -> bool:
        free = self.most - len(self._addresses)
        return free > 0 and self._counts.get(address, 0) < max(1, SHARE * free)

    def _make_way(self, address: str) -> bool:
        """Close the connection idle longest: of this address if it has its share, else of all."""
        mine, full = self._counts.get(address, 0), len(self._addresses) >= self.most
        candidates = self._idle if full and mine * (SHARE + 1) < self.most * SHARE else self._of.get(address, {})
        oldest = next(iter(candidates), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.give_way()
        return True

    def _forget_idle(self, member: RegisteredConnection, address: str) -> None:
        if member in self._idle:
            del self._idle[member]
            of = self._of[address]
            del of[member]
            if not of:
                del self._of[address]


def neighbourhood(host: str) -> str:
    """The unit of one client: an IPv4 address, or an IPv6 /64, which one client usually has whole."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))
