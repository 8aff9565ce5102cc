"""A tracked process that does what its standard input says and answers each line; run by the tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

from scripted_runtime import Runtime

from ttmesh.tracking import client, mark

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a program may do this; it must survive the server's death
runtime = Runtime()
client.start()
for line in sys.stdin:
    word, *arguments = line.split()
    numbers = [int(a) for a in arguments if a.isdigit()]
    reply: object = "ok"
    if word == "open":
        runtime.open()
    elif word == "galaxy":
        runtime = Runtime(tuple(range(32)), mesh_id=2)
        runtime.open()
    elif word == "send":
        runtime.send(*numbers)
    elif word == "reserve":
        runtime.reserve(numbers[0])
    elif word == "allocate":
        reply = [runtime.allocate(numbers[0], label="matmul") for _ in range(numbers[1])][-1]
    elif word == "free":
        runtime.free(numbers[0])
    elif word == "churn":
        for _ in range(numbers[0]):
            runtime.free(runtime.allocate(4096))
    elif word == "close":
        runtime.close()
    elif word == "mark":
        mark(" ".join(arguments))
    elif word == "fork":
        child = os.fork()
        if child == 0:
            if numbers:
                runtime.allocate(numbers[0])
            signal.pause()
        reply = child
    elif word == "worker":
        worker = multiprocessing.get_context("fork").Process(target=runtime.allocate, args=(numbers[0],))
        worker.start()
        worker.join()
        reply = worker.pid
    elif word == "held":
        reply = runtime.bytes_held()
    elif word == "unsent":
        reply = len(client._client.outbox.queue)
    elif word == "dropped":
        reply = int(client._client.outbox.gap)
    elif word == "exit":
        sys.exit(0)
    print(reply, flush=True)
