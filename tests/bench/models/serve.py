"""Serves the recorded streams on loopback over HTTP/1.1, each as fast as it is read.

Usage: serve.py FOLDER [paced]; prints its port. The path says which API. Below `/half` a stream stops halfway and stays
open; with `paced` that half comes in small pieces with pauses, as from a model.
"""

import asyncio
import pathlib
import sys

ENDS = {"/chat/completions": "chat", "/messages": "messages", "/responses": "responses"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = 16 << 10
PACED_CHUNK = 4 << 10
PAUSE_SECONDS = 0.1


def chunks(data, size):
    parts = (data[at : at + size] for at in range(0, len(data), size))
    return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]


def load(folder, paced):
    """By API: the whole body, and in pieces the first half of it, which ends with an event."""
    bodies = {}
    for name in ENDS.values():
        data = (folder / f"{name}.sse").read_bytes()
        half = data.index(b"\n\n", len(data) // 2) + 2
        whole = b"".join([*chunks(data, CHUNK), b"0\r\n\r\n"])
        bodies[name] = (whole, chunks(data[:half], PACED_CHUNK if paced else CHUNK))
    return bodies


async def answer(bodies, pause, reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = [line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length:")]
            await reader.readexactly(int(length[0]) if length else 0)
            path = head.split(" ")[1].partition("?")[0]
            whole, half = bodies[next(name for end, name in ENDS.items() if path.endswith(end))]
            stalls = path.startswith("/half/")
            writer.write(HEAD)
            for piece in half if stalls else [whole]:
                writer.write(piece)
                await writer.drain()
                if stalls and pause:
                    await asyncio.sleep(pause)
            if stalls:
                await reader.read()
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def main():
    paced = sys.argv[2:] == ["paced"]
    bodies, pause = load(pathlib.Path(sys.argv[1]), paced), PAUSE_SECONDS if paced else 0
    server = await asyncio.start_server(lambda *ends: answer(bodies, pause, *ends), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
