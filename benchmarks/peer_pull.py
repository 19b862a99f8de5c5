"""cartdeck in the download benchmark: a call of download-model through an engine whose models process is warm.

argv: SPEC [KILL_AT]. Prints {"taken_s", "peak_rss_bytes", "resumed_bytes"}. With KILL_AT, a part of 1, it prints
{"killed_at"} when so much has come, and ends itself by SIGKILL: the kernel then kills the cartridge with it.
"""

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from cartdeck import Engine, Progress

WARMING = "hf:bench/small:part-000.json"


async def pull(spec: str, kill_at: float) -> dict[str, Any]:
    async with Engine() as engine:
        await engine.run("cap:download-model", {"model": WARMING})  # the process runs, and has imported what it needs
        pid = next(session.process.pid for session in engine.pool.sessions if session.key.cartridge == "models")
        begun = time.perf_counter()
        async with engine.call("cap:download-model", {"model": spec}) as call:
            async for event in call:
                if isinstance(event, Progress) and event.phase == "download" and event.work and event.total:
                    leave_at(event.work / event.total, kill_at)
        taken_s = time.perf_counter() - begun
        details = json.loads(call.result.output("details"))
        status = Path(f"/proc/{pid}/status").read_text("ascii")  # noqa: ASYNC240 - the kernel answers at once
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        return {"taken_s": taken_s, "peak_rss_bytes": int(peak[1]) * 1024, "resumed_bytes": details["resumed_bytes"]}


def leave_at(done: float, kill_at: float) -> None:
    if done >= kill_at:
        print(json.dumps({"killed_at": done}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(pull(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 2.0))))
