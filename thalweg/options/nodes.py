"""Options of an engine whose ranks run on several machines."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from thalweg.options.device import DeviceOptions
from thalweg.options.option import Option, Rules

_option = partial(Option, group="ParallelConfig", tier="scale")


def check_host(host: str) -> Iterator[str]:
    if not host or set(host) & set("/ @"):
        yield f"{host!r} is no host; give a name or an address without scheme and port"


def check_nodes(args: "NodeOptions") -> Iterator[str]:
    if args.nnodes == 1:
        if args.node_rank:
            yield f"node_rank: {args.node_rank} is a machine of several, and nnodes is 1; give --nnodes too"
        if args.node_secret is not None:
            yield "node_secret: no other machine joins; omit it, or give --nnodes too"
        return
    if args.node_rank >= args.nnodes:
        yield f"node_rank must be less than nnodes ({args.nnodes}), not {args.node_rank}"
    if args.distributed_executor_backend not in (None, "mp"):
        yield f"nnodes: the executor {args.distributed_executor_backend} places ranks itself; omit nnodes, or use mp"
    if args.data_parallel_size > 1:
        yield "nnodes: several engines (data_parallel_size) do not share machines; start a server on each machine"
    if not args.master_port:
        yield "master_port: nodes cannot find a port that the system chooses; name one"


class NodeOptions(DeviceOptions, kw_only=True, frozen=True):
    """Where the machines of one engine meet."""

    nnodes: Annotated[int, _option(
        "Machines that share the ranks evenly. Run the same command on each, with its --node-rank", aliases=("-n",), ge=1,
    )] = 1  # fmt: skip
    node_rank: Annotated[int, _option(
        "Number of this machine. Machine 0 serves; the others need --headless", aliases=("-r",), ge=0,
    )] = 0  # fmt: skip
    master_addr: Annotated[str, _option(
        "Address of machine 0 that the others reach. Machine 0 listens at it", check=check_host,
    )] = "127.0.0.1"  # fmt: skip
    master_port: Annotated[int, _option("Port of machine 0 at which the others join", ge=0, le=65535)] = 29501
    distributed_timeout_seconds: Annotated[int, _option(
        "Longest wait for the ranks of other machines, at the start and after a fault", ge=1, unit="seconds",
    )] = 300  # fmt: skip
    node_secret: Annotated[str | None, _option(
        "File with a secret of 16 bytes or more, equal on all machines. Processes without it cannot join; default: "
        "THALWEG_NODE_SECRET, or none",
    )] = None  # fmt: skip
    RULES: ClassVar[Rules] = (check_nodes,)
