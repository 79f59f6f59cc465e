"""The private socket: modes, order, and the end of the other side."""

import asyncio
import os
import stat
import threading

import pytest

from thalweg.engine import messages as m
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.socket import AsyncChannel, Channel, ChannelClosedError, Listener


async def pair():
    with Listener() as listener:
        directory = os.path.dirname(listener.path)
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(listener.path).st_mode) == 0o600
        engine = await asyncio.to_thread(Channel, listener.path, Codec(m.ToCore))
        client = await AsyncChannel.over(await listener.accept(), Codec(m.FromCore))
    assert not os.path.exists(directory), "the name is gone as soon as the two are connected"
    return client, engine


async def test_messages_arrive_in_order_both_ways():
    client, engine = await pair()
    for i in range(200):
        client.post(m.Control(i, "x"))
    got = await asyncio.to_thread(lambda: [engine.receive().id for _ in range(200)])
    assert got == list(range(200))
    threading.Thread(target=lambda: [engine.send(m.Reply(i, True)) for i in range(200)]).start()
    assert [(await client.receive()).id for _ in range(200)] == list(range(200))
    await client.close()
    engine.close()


async def test_each_side_learns_that_the_other_is_gone():
    client, engine = await pair()
    engine.close()
    with pytest.raises(ChannelClosedError):
        await client.receive()
    client, engine = await pair()
    await client.close()
    with pytest.raises(ChannelClosedError):
        await asyncio.to_thread(engine.receive)
