"""Owns those that `bench_gguf.py` compares: cartdeck's whole stack, llama-cpp-python in this process, its own server,
and llama.cpp's own llama-bench. All with one thread, the same context, and fused attention.

It does not know figures.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from cartdeck import Data, Engine

CAP: Final = "cap:generate-text;gguf"
CONTEXT_SIZE: Final = 4096
NO_END: Final = {"0": -100, "2": -100}
"""The tokens that end a text of SmolLM2: every round has as many tokens."""

SERVER_START_S: Final = 60.0


@dataclass(slots=True)
class Round:
    """One text: its tokens, how long until the first piece of it, how long in all; how many tokens its prompt has, if
    that is known."""

    tokens: int
    first_s: float
    total_s: float
    prompt_tokens: int = 0

    @property
    def tokens_per_s(self) -> float:
        """With the prompt."""
        return self.tokens / self.total_s

    @property
    def s_per_token(self) -> float:
        """Without the prompt."""
        return (self.total_s - self.first_s) / max(1, self.tokens - 1)


class Library:
    """llama-cpp-python in this process, through its own streaming completion."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama  # noqa: PLC0415 - heavy, and only for this peer

        self._llama = Llama(path, n_ctx=CONTEXT_SIZE, n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False)

    def round(self, prompt: str, max_tokens: int) -> Round:
        self._llama.reset()
        started, first_s, tokens = time.perf_counter(), 0.0, 0
        bias = {int(token): bias for token, bias in NO_END.items()}
        stream: Iterator[Any] = self._llama.create_completion(
            prompt, max_tokens=max_tokens, temperature=0.0, repeat_penalty=1.0, stream=True, logit_bias=bias
        )
        for chunk in stream:
            first_s = first_s or time.perf_counter() - started
            tokens += chunk["choices"][0]["finish_reason"] is None
        return Round(max_tokens, first_s, time.perf_counter() - started)


class Stack:
    """The whole of cartdeck: engine, process, cartridge."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.engine = engine
        self.fixed = {"model": model, "temperature": 0, "context-size": CONTEXT_SIZE, "threads": 1}

    async def round(self, prompt: str, max_tokens: int, **changes: Any) -> Round:
        arguments = {**self.fixed, "prompt": prompt, "max-tokens": max_tokens, "logit-bias": NO_END}
        arguments |= {name.replace("_", "-"): value for name, value in changes.items()}
        started, first_s = time.perf_counter(), 0.0
        async with self.engine.call(CAP, arguments) as call:
            async for event in call:
                if not first_s and isinstance(event, Data):
                    first_s = time.perf_counter() - started
            usage = call.result.provenance["usage"]
        total_s = time.perf_counter() - started
        return Round(usage["completion_tokens"], first_s, total_s, usage["prompt_tokens"])


class Server:
    """llama-cpp-python's own server, a process; its lock lets one request at a time at the model. `start` raises
    RuntimeError when its parts are not installed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            self._port = one.getsockname()[1]
        fixed = {"n_ctx": CONTEXT_SIZE, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True, "verbose": False}
        # interrupted, the first of two requests would never be answered
        fixed |= {"model": self._path, "host": "127.0.0.1", "port": self._port, "interrupt_requests": False}
        command = [sys.executable, "-m", "llama_cpp.server"]
        for name, value in fixed.items():
            command += [f"--{name}", str(value)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + SERVER_START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("llama-cpp-python's server does not start; pip install --group bench")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None

    def round(self, prompt: str, max_tokens: int) -> Round:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "repeat_penalty": 1.0, "stream": True}
        started, first_s = time.perf_counter(), 0.0
        connection = HTTPConnection("127.0.0.1", self._port, timeout=300)
        connection.request(
            "POST", "/v1/completions", json.dumps(body | {"logit_bias": NO_END}), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {response.read(500)!r}")
        while line := response.readline():
            if not first_s and line.startswith(b"data: {"):
                first_s = time.perf_counter() - started
        connection.close()
        return Round(max_tokens, first_s, time.perf_counter() - started)

    def rounds(self, prompts: list[str], max_tokens: int) -> list[Round]:
        """All at once, a thread for each reader."""
        found: list[Round] = []
        threads = [
            threading.Thread(target=lambda prompt=prompt: found.append(self.round(prompt, max_tokens)))
            for prompt in prompts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(found) != len(prompts):
            raise RuntimeError(f"the server answered {len(found)} of {len(prompts)} requests")
        return found


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """llama.cpp's own program: tokens decoded one by one, none drawn."""

    program: Path
    path: str

    async def round(self, prompt_tokens: int, tokens: int) -> float:
        """Tokens per second after a prompt of so many, whose time does not count."""
        command = [
            str(self.program), "-m", self.path, "-t", "1", "-fa", "1", "-p", "0", "-n", str(tokens),
            "-d", str(prompt_tokens), "-r", "1", "-o", "json",
        ]  # fmt: skip
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True, timeout=300)
        return float(json.loads(done.stdout)[0]["avg_ts"])
