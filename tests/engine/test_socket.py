"""The channel between client and engine: order, and the end of the other side."""

import asyncio
import threading

import pytest

from thalweg.engine import messages as m
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.pair import pair
from thalweg.engine.ipc.socket import AsyncChannel, Channel, ChannelClosedError


async def connected():
    ours, theirs = pair()
    assert not theirs.get_inheritable(), "only who is told to inherits it"
    return await AsyncChannel.over(ours, Codec(m.FromCore)), Channel(theirs.detach(), Codec(m.ToCore))


async def test_messages_arrive_in_order_both_ways():
    client, engine = await connected()
    for i in range(200):
        client.post(m.Control(i, "x"))
    got = await asyncio.to_thread(lambda: [engine.receive().id for _ in range(200)])
    assert got == list(range(200))
    threading.Thread(target=lambda: [engine.send(m.Reply(i, True)) for i in range(200)]).start()
    assert [(await client.receive()).id for _ in range(200)] == list(range(200))
    await client.close()
    engine.close()


async def test_frames_sent_by_several_threads_do_not_mix():
    client, engine = await connected()
    senders = [threading.Thread(target=lambda k=k: [engine.send(m.Reply(k, True)) for _ in range(300)]) for k in range(4)]
    for s in senders:
        s.start()
    ids = [(await client.receive()).id for _ in range(1200)]
    assert sorted(ids) == sorted([k for k in range(4) for _ in range(300)])
    await client.close()
    engine.close()


async def test_each_side_learns_that_the_other_is_gone():
    client, engine = await connected()
    engine.close()
    with pytest.raises(ChannelClosedError):
        await client.receive()
    client, engine = await connected()
    await client.close()
    with pytest.raises(ChannelClosedError):
        await asyncio.to_thread(engine.receive)
