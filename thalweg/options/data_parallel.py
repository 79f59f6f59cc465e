"""Options of engines that share requests: those of this server, and those of other servers behind one balancer."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from thalweg.options.nodes import NodeOptions
from thalweg.options.option import Option, Rules

_option = partial(Option, group="ParallelConfig", tier="scale")


def check_engines(args: "DataParallelOptions") -> Iterator[str]:
    size, local, rank, start = (
        args.data_parallel_size, args.data_parallel_size_local, args.data_parallel_rank, args.data_parallel_start_rank,
    )  # fmt: skip
    if args.is_external and args.data_parallel_hybrid_lb:
        yield "data_parallel_hybrid_lb: with data_parallel_rank this server has one engine, and shares nothing out; omit it"
    if args.data_parallel_external_lb and rank is None:
        yield "data_parallel_external_lb: which of the engines is this one? Give --data-parallel-rank too"
    if rank is not None and rank >= size:
        yield f"data_parallel_rank must be less than data_parallel_size ({size}), not {rank}"
    if args.is_external and local not in (None, 1):
        yield f"data_parallel_size_local: {local} engines, and with data_parallel_rank this server has one; omit it"
    if args.data_parallel_hybrid_lb and local is None:
        yield "data_parallel_hybrid_lb: how many of the engines are this server's? Give --data-parallel-size-local too"
    if local is not None and not (args.data_parallel_hybrid_lb or args.is_external) and local != size:
        yield (
            f"data_parallel_size_local: a server runs all of its {size} engines (data_parallel_size); for one of several "
            "servers behind a balancer give --data-parallel-hybrid-lb too"
        )
    if start and not args.data_parallel_hybrid_lb:
        yield "data_parallel_start_rank is of one of several servers behind a balancer; give --data-parallel-hybrid-lb too"
    if args.data_parallel_hybrid_lb and local is not None and start + local > size:
        yield f"data_parallel_start_rank: engines {start} to {start + local - 1} are not all of data_parallel_size {size}"


def check_elastic(args: "DataParallelOptions") -> Iterator[str]:
    most = args.elastic_ep_max_dp_size
    if most is not None and not args.enable_elastic_ep:
        yield "elastic_ep_max_dp_size: the number of engines is fixed; give --enable-elastic-ep too"
    if not args.enable_elastic_ep:
        return
    if most is not None and most < args.data_parallel_size:
        yield f"elastic_ep_max_dp_size must be at least data_parallel_size ({args.data_parallel_size}), not {most}"
    if args.is_external or args.data_parallel_hybrid_lb:
        yield "enable_elastic_ep: the balancer in front decides how many engines there are; start or stop servers, or omit it"
    if args.nnodes > 1:
        yield "enable_elastic_ep: an engine on several machines has the devices of all; omit it"


class DataParallelOptions(NodeOptions, kw_only=True, frozen=True):
    """Which of the engines that share the requests are this server's. Each has the whole model, and none waits for another."""

    data_parallel_size_local: Annotated[int | None, _option(
        "Engines of this server, with --data-parallel-hybrid-lb; default: all", aliases=("-dpl",), ge=1,
    )] = None  # fmt: skip
    data_parallel_rank: Annotated[int | None, _option(
        "This server has one engine, of this number. A balancer shares requests out among the servers", aliases=("-dpn",), ge=0,
    )] = None  # fmt: skip
    data_parallel_start_rank: Annotated[int, _option(
        "Number of this server's first engine, with --data-parallel-hybrid-lb", aliases=("-dpr",), ge=0,
    )] = 0  # fmt: skip
    data_parallel_external_lb: Annotated[bool, _option(
        "A balancer shares requests out among servers with an engine each; --data-parallel-rank says so too", aliases=("-dpe",),
    )] = False  # fmt: skip
    data_parallel_hybrid_lb: Annotated[bool, _option(
        "A balancer shares requests out among servers, and each server among its engines", aliases=("-dph",),
    )] = False  # fmt: skip
    enable_elastic_ep: Annotated[bool, _option(
        "The number of engines may change while requests run, by POST /scale_elastic_ep (with --server-dev-mode)",
    )] = False  # fmt: skip
    elastic_ep_max_dp_size: Annotated[int | None, _option(
        "Most engines, with --enable-elastic-ep. Each has this share of the threads; default: --data-parallel-size", ge=1,
    )] = None  # fmt: skip
    RULES: ClassVar[Rules] = (check_engines, check_elastic)

    @property
    def is_external(self) -> bool:
        """Does this server have one engine of several servers'?"""
        return self.data_parallel_rank is not None or self.data_parallel_external_lb

    @property
    def local_engines(self) -> int:
        """Engines of this server."""
        return 1 if self.is_external else self.data_parallel_size_local or self.data_parallel_size

    @property
    def most_engines(self) -> int:
        """Engines of this server at any time."""
        return max(self.local_engines, self.elastic_ep_max_dp_size or 1)

    @property
    def first_engine(self) -> int:
        """The number of this server's first engine."""
        return self.data_parallel_rank or self.data_parallel_start_rank
