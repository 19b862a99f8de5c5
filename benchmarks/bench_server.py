"""The HTTP server: an echo beside bare starlette, chats beside llama-cpp-python's own server, clients that only wait.

    python benchmarks/bench_server.py [--json] [--quick] [--rounds N] [--only echo,chat,idle]

One JSON line per figure with --json ({"peer", "figure", "value", "unit", "min", "max"}), the median over the rounds;
`ratio` lines compare the two servers in the same round, and `must` says what has to hold. Both run the same model file
with one thread each; the peers take turns. --quick runs fewer and shorter requests, and not 32 chats at once, in under
a minute.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_plans import Figures

import cartdeck

ECHO: Final = "x" * 64
IDLE_CLIENTS: Final = 1000
PROMPT: Final = "Tell me a long story about the sea."
MIB: Final = 1024**2
START_S: Final = 60.0
CONFIG: Final = f"[instances]\nqueue = {2 * IDLE_CLIENTS}\n[call]\nsilence_s = 600\n"

# figure: the bound, and whether the value must be below or above it
MUST: Final = {
    "tokens_per_s at 1, ours / theirs": (">=", 0.95),
    "first_token_p99 at 8, ours / theirs": ("<", 1.0),
    "first_token_p99 at 32, ours / theirs": ("<", 1.0),
}

BARE: Final = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def echo(request):
    return JSONResponse({"text": (await request.json())["arguments"]["data"]})

app = Starlette(routes=[Route("/caps/call", echo, methods=["POST"])])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
"""


@dataclass(slots=True)
class Peer:
    """A server that runs."""

    port: int
    process: subprocess.Popen[bytes]
    model: str = "default"

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, path: str, **environment: str) -> Iterator[Peer]:
    """Starts a server and waits until it answers; ends it behind the block."""
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        limit = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                if not path:
                    break
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                    break
            if process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"{command} did not begin to answer")
            time.sleep(0.05)
        yield Peer(port, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def ours(folder: Path, *options: str) -> Iterator[Peer]:
    config = folder / "config.toml"
    config.write_text(CONFIG, "utf-8")
    port = free_port()
    cartdeck_command = str(Path(sys.executable).with_name("cartdeck"))
    command = [cartdeck_command, "serve", "--port", str(port), "--quiet", "--grace", "0.2", *options]
    with running(command, port, "/readyz", CARTDECK_CONFIG=str(config), OMP_WAIT_POLICY="passive") as peer:
        yield peer


@contextlib.contextmanager
def theirs(model: Path) -> Iterator[Peer]:
    """llama-cpp-python's server. It would cut a stream off when the next request comes: that is turned off."""
    port = free_port()
    command = [
        sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port), "--n_ctx", "8192",
        "--n_threads", "1", "--n_threads_batch", "1", "--interrupt_requests", "false", "--verbose", "false",
    ]  # fmt: skip
    with running(command, port, "/v1/models", OMP_WAIT_POLICY="passive") as peer:
        yield peer


def model_file() -> Path:
    """The embedded default model, fetched once."""
    with cartdeck.open() as engine:
        chat = next(
            one.definition for one in engine.caps() if one.cartridge == "gguf" and one.definition.alias == "chat"
        )
        return Path(engine.run("cap:download-model", {"model": str(chat.arguments["model"].default)}).text)


# -- an echo


async def ask_in_a_row(peer: Peer, count: int, times: list[float]) -> None:
    """Requests of one connection, one behind the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    request = peer.post("/caps/call", {"cap": "cap:echo", "arguments": {"data": ECHO}, "stream": False})
    for _ in range(count):
        begun = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        assert ECHO.encode() in await reader.readexactly(length)
        times.append(time.perf_counter() - begun)
    writer.close()
    await writer.wait_closed()


async def measure_echo(peer: Peer, name: str, figures: Figures, *, count: int, clients: int) -> float:
    await ask_in_a_row(peer, 50, [])
    times: list[float] = []
    begun = time.perf_counter()
    await asyncio.gather(*(ask_in_a_row(peer, count // clients, times) for _ in range(clients)))
    per_s = len(times) / (time.perf_counter() - begun)
    figures.add(name, f"echo_per_s at {clients}", per_s, "1/s")
    figures.add(name, f"echo_p99 at {clients}", percentile(times, 0.99) * 1e3, "ms")
    return per_s


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# -- chats


@dataclass(slots=True)
class Heard:
    first_s: float
    tokens: int
    total_s: float


_numbers = itertools.count()


async def chat(peer: Peer, tokens: int) -> Heard:
    """One stream of a chat that nobody asked for before, read to its end; each chunk with text counts as a token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port, limit=MIB)
    messages = [{"role": "user", "content": f"{next(_numbers)}. {PROMPT}"}]
    body = {"model": peer.model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    begun = time.perf_counter()
    writer.write(peer.post("/v1/chat/completions", body))
    first_s, count, last = 0.0, 0, b""
    while b"[DONE]" not in last:
        last = await reader.readline()
        assert last, "the stream was cut"
        if last.startswith(b"data: {"):
            data = json.loads(last[6:])
            assert "error" not in data, data
            if data["choices"] and data["choices"][0]["delta"].get("content"):
                first_s = first_s or time.perf_counter() - begun
                count += 1
    writer.close()
    return Heard(first_s, count, time.perf_counter() - begun)


async def measure_chat(peer: Peer, name: str, figures: Figures, *, tokens: int, clients: int) -> tuple[float, float]:
    """Tokens per second of all clients together, behind the first token for one; the p99 of the first token."""
    begun = time.perf_counter()
    heard = await asyncio.gather(*(chat(peer, tokens) for _ in range(clients)))
    total_s = time.perf_counter() - begun
    if clients == 1:
        speed = (heard[0].tokens - 1) / (heard[0].total_s - heard[0].first_s)
    else:
        speed = sum(one.tokens for one in heard) / total_s
    p99 = percentile([one.first_s for one in heard], 0.99)
    figures.add(name, f"tokens_per_s at {clients}", speed, "1/s")
    figures.add(name, f"first_token_p50 at {clients}", percentile([one.first_s for one in heard], 0.5), "s")
    figures.add(name, f"first_token_p99 at {clients}", p99, "s")
    return speed, p99


# -- clients that wait


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


async def measure_idle(peer: Peer, figures: Figures) -> None:
    """Streams that have begun and have nothing to say: 64 run in the cartridge, the others wait for their turn."""
    await ask_in_a_row(peer, 200, [])
    before = rss_mib(peer.process.pid)
    request = peer.post("/caps/call", {"cap": "cap:misbehave", "arguments": {"action": "stall"}})
    connections = [await asyncio.open_connection("127.0.0.1", peer.port) for _ in range(IDLE_CLIENTS)]
    for _, writer in connections:
        writer.write(request)
    for reader, _ in connections:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    after = rss_mib(peer.process.pid)
    figures.add("cartdeck", "idle_clients_rss", after - before, "MiB")
    figures.add("cartdeck", "idle_client_rss", (after - before) * 1024 / IDLE_CLIENTS, "KiB")
    for _, writer in connections:
        writer.close()


async def measure(figures: Figures, options: argparse.Namespace) -> None:
    rounds = options.rounds or (1 if options.quick else 3)
    wanted = set(options.only.split(","))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "echo" in wanted:
            await echoes(figures, folder, rounds=rounds, count=600 if options.quick else 4000)
        if "chat" in wanted:
            await chats(figures, folder, rounds=rounds, is_quick=options.quick)
        if "idle" in wanted:
            with ours(folder, "--comment-every", "0.5", "--max-requests", str(2 * IDLE_CLIENTS)) as peer:
                await measure_idle(peer, figures)


async def echoes(figures: Figures, folder: Path, *, rounds: int, count: int) -> None:
    port = free_port()
    with ours(folder) as peer, running([sys.executable, "-c", BARE, str(port)], port, "") as bare:
        for _ in range(rounds):
            for clients in (1, 16):
                bare_per_s = await measure_echo(bare, "starlette", figures, count=count, clients=clients)
                per_s = await measure_echo(peer, "cartdeck", figures, count=count, clients=clients)
                figures.add("ratio", f"echo_per_s at {clients}, ours / bare", per_s / bare_per_s, "x")


async def chats(figures: Figures, folder: Path, *, rounds: int, is_quick: bool) -> None:
    model = model_file()
    with ours(folder) as peer, theirs(model) as other:
        peer.model = str(model)
        await chat(peer, 4)  # the load has figures of its own, in bench_gguf.py
        await chat(other, 4)
        for number in range(rounds):
            for clients in (1, 8) if is_quick else (1, 8, 32):
                tokens = (64 if is_quick else 256) if clients == 1 else (32 if is_quick else 64)
                pair = [(peer, "cartdeck"), (other, "llama-cpp")]
                found = {
                    name: await measure_chat(one, name, figures, tokens=tokens, clients=clients)
                    for one, name in (pair if number % 2 == 0 else reversed(pair))
                }
                (speed, p99), (other_speed, other_p99) = found["cartdeck"], found["llama-cpp"]
                figures.add("ratio", f"tokens_per_s at {clients}, ours / theirs", speed / other_speed, "x")
                figures.add("ratio", f"first_token_p99 at {clients}, ours / theirs", p99 / other_p99, "x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter requests, under a minute")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", default="echo,chat,idle", help="which of the three")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * IDLE_CLIENTS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * IDLE_CLIENTS), hard))
    figures = Figures(MUST)
    asyncio.run(measure(figures, options))
    for line in figures.lines():
        if options.json:
            print(json.dumps(line), flush=True)
        else:
            must = f"  must be {line['must']}, best {line['best']:.3f}" if "must" in line else ""
            print(f"{line['peer']:10} {line['figure']:40} {line['value']:>12,.3f} {line['unit']}{must}", flush=True)


if __name__ == "__main__":
    main()
