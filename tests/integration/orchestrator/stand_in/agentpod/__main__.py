"""Implements the protocol of the fork server with pods that only sleep; `store` selects their behavior.

| store | the leader |
|---|---|
| (anything else) | sleeps until SIGTERM |
| stubborn | ignores SIGTERM |
| crash | writes a line to its log and exits |
| refuse | is not forked: the request is answered with an error |
| full | is not forked: the request is answered with an error that may pass |
"""

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

children: dict[int, str] = {}


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def run_role(pod: dict[str, Any], role: str) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if pod["store"] == "stubborn" else signal.SIG_DFL)
    if pod["store"] == "crash" and role == "learner":
        Path(pod["log_path"]).write_text("starting\n\x1b[31merror: no such environment\x1b[0m\n\n")
        os._exit(1)
    os.closerange(3, 64)
    while True:
        signal.pause()


def start(pod: dict[str, Any]) -> dict[str, Any]:
    if pod["store"] in ("refuse", "full"):
        return {"error": "no space", "passing": pod["store"] == "full"}
    names = ["learner"]
    if pod["layout"] == "separate":
        names += [*(f"worker-{index}" for index in range(pod["workers"])), "evaluator"]
    folder = Path(pod["folder"])
    folder.mkdir(parents=True)
    roles = {}
    for name in names:
        closed, inherited = os.pipe()
        pid = os.fork()
        if pid == 0:
            run_role(pod, name)
        os.close(inherited)
        # Reads the end of the pipe once the child has closed it, and with it the socket of this server: a client must
        # not connect to a child after this process was killed.
        os.read(closed, 1)
        os.close(closed)
        children[pid] = name
        roles[name] = {"pid": pid, "start_ticks": start_ticks(pid)}
    content = {
        name: pod[name] for name in ("pod_id", "tournament_id", "layout", "cores", "memory_bytes", "gpus", "cpus")
    }
    content |= {"start_time": time.time(), "roles": roles, "order": pod}
    content["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (folder / "pod.tmp").write_text(json.dumps(content))
    (folder / "pod.tmp").rename(folder / "pod.json")
    return {"pid": roles["learner"]["pid"]}


def main() -> None:
    assert sys.argv[1] == "forkserver"
    settings = dict(setting.split("=", 1) for setting in sys.argv[3::2])
    listener = socket.socket(socket.AF_UNIX)
    Path(settings["socket"]).unlink(missing_ok=True)
    listener.bind(settings["socket"])
    listener.listen()
    readable = [listener]
    while True:
        for ready in select.select(readable, [], [], 0.05)[0]:
            if ready is listener:
                readable.append(listener.accept()[0])
                continue
            line = ready.recv(1 << 16)
            if line:
                ready.sendall(json.dumps(start(json.loads(line)["pod"])).encode() + b"\n")
            else:
                readable.remove(ready)
        while children and (pid := os.waitpid(-1, os.WNOHANG)[0]):
            del children[pid]


main()
