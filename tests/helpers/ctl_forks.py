"""`clankers-ctl`, loaded once and forked for every call: loading it costs ten times what a call does.

Its standard input is a socket. A byte on it carries four files: what is called, and the call's standard input, output
and error. The answer is the exit code.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time

import rich.progress
import rich.table

import clankers.ctl

LOADED = (rich.progress, rich.table, list(clankers.ctl.cli.commands.values()))
"""What a call would load, or many would."""

ENOUGH = 60
"""Seconds after which a call that does not end is ended."""


def main() -> None:
    gc.freeze()  # or each call would copy all of it to find no garbage in it
    with socket.socket(fileno=os.dup(0)) as asker:
        while files := socket.recv_fds(asker, 1, 4)[1]:
            if not (child := os.fork()):
                become(*files)
            for file in files:
                os.close(file)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            asker.sendall(str(code).encode())


def become(called: int, *standard: int) -> None:
    """Be the process that `python -m clankers.ctl` would have been, to its end."""
    with open(called) as file:
        call = json.load(file)
    for number, given in enumerate(standard):
        os.dup2(given, number)
        os.close(given)
    if os.isatty(1):  # the streams that are there were made for files
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(call["environ"])
    time.tzset()
    os.chdir(call["cwd"])
    signal.alarm(ENOUGH)
    sys.argv[1:] = call["words"]
    runpy.run_module("clankers.ctl", run_name="__main__", alter_sys=True)
    raise SystemExit


if __name__ == "__main__":
    main()
