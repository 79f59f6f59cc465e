"""O: others' hosts and others' questions. Slow image hosts, and metrics that are asked for without end."""

from __future__ import annotations

import asyncio
import base64
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaosrig.context import Context, Row
from chaosrig.http import ask
from chaosrig.server import Probing, Server
from chaosrig.table import Figure, RowFailedError, at_most, exactly, none_of, percentile

HOG, GUEST = ({"Authorization": f"Bearer {name}"} for name in ("hog", "guest"))
KEYS = ["hog", "guest"]
MODELS = Path(__file__).parents[2] / "models"


def _picture() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (28, 28), (9, 99, 199)).save(out, format="PNG")
    return out.getvalue()


def _seeing(path: Path) -> str:
    """A small model that sees."""
    sys.path.insert(0, str(MODELS))
    import seeing

    seeing.make("llava", path)
    return str(path)


async def _look(port: int, urls: list[str], headers: dict[str, str], timeout: float) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}], "max_tokens": 2}
    return await ask(port, "POST", "/v1/chat/completions", body, headers, timeout)


async def o1(ctx: Context) -> list[Figure]:
    """An allowed host that takes connections and says nothing; images of a key that asks it for 32, and another key's."""
    picture, times, bad = _picture(), [], []

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stalled.append(writer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(picture) + picture)
        writer.close()

    stalled: list[asyncio.StreamWriter] = []
    slow, quick = await asyncio.start_server(stall, "127.0.0.1", 0), await asyncio.start_server(serve, "127.0.0.1", 0)
    ports = [s.sockets[0].getsockname()[1] for s in (slow, quick)]
    hosts = [f"127.0.0.1:{ports[0]}", f"localhost:{ports[1]}"]
    with tempfile.TemporaryDirectory(prefix="chaos-model-") as folder:
        model = await asyncio.to_thread(_seeing, Path(folder))
        async with Server(
            model=model, device="cpu", dtype="float32", max_model_len=512, num_gpu_blocks_override=64, api_key=KEYS,
            allowed_media_domains=hosts, limit_mm_per_prompt='{"image": 4}',
        ) as server:  # fmt: skip
            sent = [f"data:image/png;base64,{base64.b64encode(picture).decode()}", f"http://{hosts[1]}/a.png"]
            for url in sent:
                if (answer := await _look(server.port, [url], GUEST, 60)).status != 200:
                    raise RowFailedError(f"{url[:30]}: {answer.status} {answer.error} {answer.message()}")
            urls = [f"http://{hosts[0]}/{i}.png" for i in range(4)]
            hogs = [asyncio.create_task(_look(server.port, urls, HOG, 120)) for _ in range(8)]
            await asyncio.sleep(1)
            for _ in range(ctx.size(5, 30)):
                for url in sent:
                    answer = await _look(server.port, [url], GUEST, 60)
                    times.append(answer.seconds)
                    bad += [] if answer.status == 200 else [f"{answer.status} {answer.error} {answer.message()}"]
            for hog in hogs:
                hog.cancel()
            await asyncio.gather(*hogs, return_exceptions=True)
    for each in (slow, quick):
        each.close()
    for writer in stalled:
        writer.close()
    return [
        at_most("O1", "guest's chat with an image, slowest (s)", 1, max(times), len(times)),
        none_of("O1", "guest's images not answered", bad, len(times)),
        exactly("O1", "the slow host was asked", True, len(stalled) > 0, len(stalled)),
    ]


async def o2(ctx: Context) -> list[Figure]:
    """/metrics without a pause, on four connections."""
    seconds, scrapes = ctx.size(5, 30), list[float]()
    async with Server(knobs={"base": 0.005}) as server:
        await ask(server.port, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})

        async def scrape(end: float) -> None:
            while time.monotonic() < end:
                answer = await ask(server.port, "GET", "/metrics")
                scrapes.append(answer.seconds if answer.status == 200 else float("inf"))

        async with Probing(server.port, "/livez") as probing:
            end = time.monotonic() + seconds
            await asyncio.gather(*(scrape(end) for _ in range(4)))
    probes = probing.seconds("/livez", status=None)
    return [
        at_most("O2", "/metrics, median (ms)", 20, 1000 * statistics.median(scrapes), len(scrapes)),
        at_most("O2", "/livez p99 (ms)", 50, 1000 * percentile(probes, 99), len(probes)),
        none_of("O2", "/livez failures", probing.failures(), len(probes)),
    ]


ROWS = (Row(("O1",), o1, patience=240), Row(("O2",), o2))
