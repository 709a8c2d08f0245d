"""pi-durable-python's half of the comparison that `tests/bench/turns/run` makes.

    durable.py turns STORE SCRIPT SESSIONS TURNS FOLDER
    durable.py history STORE TURNS FOLDER
    durable.py streams STORE SESSIONS SECONDS FOLDER
    durable.py watchers STORE TURNS FOLDER

STORE is memory or sqlite, SCRIPT plain or tool. Prints a line of JSON for each figure. The scripts are those of `main.rs` and `modes.rs`.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time

from pi_durable import Harness, MemoryStorage, Model, create_registry, watch_events
from pi_durable.context import BACKGROUND_CONTEXT
from pi_durable.harness.define import define_extension, define_tool
from pi_durable.providers.base import ProviderModels
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage

WORDS = 20
WORD = "word and "
PAUSE = 0.1
# How many turns a window of `history` has, and after how many the context begins anew.
WINDOW = 100
RESET = 10
MODEL = Model(provider="p", model_id="m", context_window=1_000_000, max_tokens=1_000, reasoning=False)


def usage():
    return {
        "input": 10, "output": 20, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 30,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
    }


def milliseconds():
    return time.time_ns() // 1_000_000


class Stream:
    """The recorded answer: one text of twenty pieces, or one call, or a number of pieces with pauses that are the times they come at."""

    def __init__(self, call, paced):
        self.call = call
        self.paced = paced
        self.output = {
            "role": "assistant", "content": [], "api": "scripted", "provider": "p", "model": "m",
            "usage": usage(), "stopReason": "stop", "timestamp": milliseconds(),
        }

    async def __aiter__(self):
        output = self.output
        yield {"type": "start", "partial": output}
        if self.call:
            call = {"type": "toolCall", "id": "call-1", "name": "echo", "arguments": {"text": "hello"}}
            output["content"].append(call)
            output["stopReason"] = "toolUse"
            yield {"type": "toolcall_start", "contentIndex": 0, "partial": output}
            yield {"type": "toolcall_end", "contentIndex": 0, "toolCall": call, "partial": output}
        else:
            block = {"type": "text", "text": ""}
            output["content"].append(block)
            yield {"type": "text_start", "contentIndex": 0, "partial": output}
            async for word in self.words():
                block["text"] += word
                yield {"type": "text_delta", "contentIndex": 0, "delta": word, "partial": output}
            if self.paced is not None:
                self.output = output = {**output, "content": [{"type": "text", "text": "over"}]}
            else:
                yield {"type": "text_end", "contentIndex": 0, "content": block["text"], "partial": output}
        yield {"type": "done", "reason": output["stopReason"], "message": output}

    async def words(self):
        if self.paced is None:
            for _ in range(WORDS):
                yield WORD
        else:
            for _ in range(self.paced):
                await asyncio.sleep(PAUSE)
                yield f"{milliseconds()} "

    async def result(self):
        return self.output


class Scripted(ProviderModels):
    api = "scripted"

    def __init__(self, tool, paced):
        super().__init__([MODEL])
        self.tool = tool
        self.paced = paced

    def stream_simple(self, model, context, options=None):
        last = [message for message in context["messages"] if message["role"] != "system"][-1]
        return Stream(self.tool and last["role"] == "user", self.paced)


async def echo(arguments, *_):
    return {"content": [{"type": "text", "text": arguments["text"]}]}


async def opened(store, folder, number=0, *, tool=False, paced=None):
    """A session of its own, which with SQLite is a file of its own, and its root conversation."""
    storage = MemoryStorage() if store == "memory" else await open_posix_sqlite_storage(os.path.join(folder, f"{number}.db"))
    registry = create_registry()
    agent = {"model": {"provider": "p", "modelId": "m"}}
    if tool:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        echoing = define_tool(name="echo", description="Says it again", parameters=parameters, execute=echo)
        registry.install(define_extension(name="bench", tools=[echoing]))
    harness = await Harness.open(storage, {"models": Scripted(tool, paced), "registry": registry}, BACKGROUND_CONTEXT)
    return harness, await harness.root(BACKGROUND_CONTEXT, {"agent": agent})


async def talk(conversation, turns):
    for _ in range(turns):
        submission = await conversation.submit({"type": "input", "content": "Go on."}, BACKGROUND_CONTEXT)
        settled = await submission.wait(BACKGROUND_CONTEXT)
        if settled["status"] != "done":
            raise SystemExit(f"a turn ended as {settled}")


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def written():
    """What this process has written, in bytes."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def figure(mode, store, **values):
    durability = "none" if store == "memory" else "process"
    print(json.dumps({"mode": mode, "who": "pi-durable-python", "store": store, "durability": durability, **values}), flush=True)


async def turns(store, script, sessions, count, folder):
    open_ones = [await opened(store, folder, number, tool=script == "tool") for number in range(sessions)]
    wall, used = time.perf_counter(), cpu()
    await asyncio.gather(*(talk(conversation, count) for _, conversation in open_ones))
    wall, used = time.perf_counter() - wall, cpu() - used
    kinds = [entry["kind"] for entry in (await open_ones[0][1].entries({}, 20, None, BACKGROUND_CONTEXT))["items"]]
    figure(
        "turns", store, script=script, sessions=sessions, turns=sessions * count, wall=wall, cpu=used, kinds=list(reversed(kinds)),
    )
    for harness, _ in open_ones:
        await harness.close(BACKGROUND_CONTEXT)


async def block(conversation):
    """Some turns in a new context."""
    await conversation.reset(None, BACKGROUND_CONTEXT)
    await talk(conversation, RESET)


async def window(conversation):
    """Seconds of a turn: medians over the blocks of a window."""
    walls, cpus = [], []
    for _ in range(WINDOW // RESET):
        await conversation.reset(None, BACKGROUND_CONTEXT)
        wall, used = time.perf_counter(), cpu()
        await talk(conversation, RESET)
        walls.append((time.perf_counter() - wall) / RESET)
        cpus.append((cpu() - used) / RESET)
    return {"wall": statistics.median_high(walls), "cpu": statistics.median_high(cpus)}


async def history(store, count, folder):
    if count < RESET + 2 * WINDOW or count % RESET != 0:
        raise SystemExit(f"at least {RESET + 2 * WINDOW} turns, in steps of {RESET}")
    harness, conversation = await opened(store, folder)
    await talk(conversation, RESET)
    figure("history", store, age="young", first=RESET, last=RESET + WINDOW, **await window(conversation))
    for _ in range((count - 2 * WINDOW) // RESET - 1):
        await block(conversation)
    figure("history", store, age="old", first=count - WINDOW, last=count, **await window(conversation))
    await harness.close(BACKGROUND_CONTEXT)


async def streams(store, sessions, seconds, folder):
    # Each session has a file of SQLite, and each file three descriptors.
    files, limit = 3 * sessions + 64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if store == "sqlite" and limit != resource.RLIM_INFINITY and limit < files:
        raise SystemExit(f"{sessions} sessions need {files} open files, and the hard limit is {limit}; raise it with `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    pieces = seconds * 10
    open_ones = [await opened(store, folder, number, paced=pieces) for number in range(sessions)]
    delays = []

    def read(events, _):
        now = milliseconds()
        delays.extend(now - given for event in events for given in given_at(event))

    # One in ten is looked at, so that it shows when a piece is published.
    readers = [await watch_events(harness, conversation.id, BACKGROUND_CONTEXT) for harness, conversation in open_ones[::10]]
    for reader in readers:
        reader.start(read)
    wall, used, wrote = time.perf_counter(), cpu(), written()
    await asyncio.gather(*(talk(conversation, 1) for _, conversation in open_ones))
    wall, used, wrote = time.perf_counter() - wall, cpu() - used, written() - wrote
    for reader in readers:
        await reader.stop()
    delays.sort()

    def at(share):
        return delays[(len(delays) - 1) * share // 100] if delays else None

    figure(
        "streams", store, sessions=sessions, seconds=seconds, pieces=pieces * sessions, wall=wall, cpu=used, written=wrote,
        observed=len(delays), p50=at(50), p99=at(99),
    )
    for harness, _ in open_ones:
        await harness.close(BACKGROUND_CONTEXT)


def given_at(event):
    """When the pieces of an event were given out."""
    if event["type"] != "message_update":
        return []
    deltas = (change["delta"] for change in event["changes"] if change["type"] == "text_delta")
    return [int(given) for delta in deltas for given in delta.split()]


async def watchers(store, count, folder):
    if count < RESET or count % RESET != 0:
        raise SystemExit(f"at least {RESET} turns, in steps of {RESET}")
    for number in (0, 1, 100):
        for interface in ("view", "events"):
            await watched(store, interface, number, count, tempfile.mkdtemp(dir=folder))


async def watched(store, interface, observers, count, folder):
    harness, conversation = await opened(store, folder)
    seen = 0

    def see(*_):
        nonlocal seen
        seen += 1

    watches = []
    for _ in range(observers):
        if interface == "view":
            watches.append(await conversation.watch(BACKGROUND_CONTEXT))
        else:
            watches.append(await watch_events(harness, conversation.id, BACKGROUND_CONTEXT))
        watches[-1].start(see)
    # The first turns warm up.
    await block(conversation)
    before, used = seen, cpu()
    for _ in range(count // RESET):
        await block(conversation)
    used = cpu() - used
    if observers and seen == before:
        raise SystemExit("nobody saw anything")
    figure("watchers", store, interface=interface, observers=observers, turns=count, cpu=used, seen=seen - before)
    for watch in watches:
        await watch.stop()
    await harness.close(BACKGROUND_CONTEXT)


def main(arguments):
    match arguments:
        case [_, ("memory" | "sqlite"), *_]:
            pass
        case _:
            raise SystemExit(__doc__)
    match arguments:
        case ["turns", store, ("plain" | "tool") as script, sessions, count, folder]:
            return turns(store, script, int(sessions), int(count), folder)
        case ["history", store, count, folder]:
            return history(store, int(count), folder)
        case ["streams", store, sessions, seconds, folder]:
            return streams(store, int(sessions), int(seconds), folder)
        case ["watchers", store, count, folder]:
            return watchers(store, int(count), folder)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
