"""pi-durable-python's half of the comparison that `tests/bench/turns/run` makes.

    durable.py turns STORE SCRIPT SESSIONS TURNS FOLDER

STORE is memory or sqlite, SCRIPT plain or tool. Prints one line of JSON.
"""

import asyncio
import json
import os
import resource
import sys
import time

from pi_durable import Harness, MemoryStorage, Model, create_registry
from pi_durable.context import BACKGROUND_CONTEXT
from pi_durable.harness.define import define_extension, define_tool
from pi_durable.providers.base import ProviderModels
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage

WORDS = 20
WORD = "word and "
MODEL = Model(provider="p", model_id="m", context_window=1_000_000, max_tokens=1_000, reasoning=False)


def usage():
    return {
        "input": 10, "output": 20, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 30,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
    }


class Stream:
    """The recorded answer: one text of twenty pieces, or one call."""

    def __init__(self, call):
        self.call = call
        self.output = {
            "role": "assistant", "content": [], "api": "scripted", "provider": "p", "model": "m",
            "usage": usage(), "stopReason": "stop", "timestamp": int(time.time() * 1000),
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
            for _ in range(WORDS):
                block["text"] += WORD
                yield {"type": "text_delta", "contentIndex": 0, "delta": WORD, "partial": output}
            yield {"type": "text_end", "contentIndex": 0, "content": block["text"], "partial": output}
        yield {"type": "done", "reason": output["stopReason"], "message": output}

    async def result(self):
        return self.output


class Scripted(ProviderModels):
    api = "scripted"

    def __init__(self, tool):
        super().__init__([MODEL])
        self.tool = tool

    def stream_simple(self, model, context, options=None):
        last = [message for message in context["messages"] if message["role"] != "system"][-1]
        return Stream(self.tool and last["role"] == "user")


async def echo(arguments, *_):
    return {"content": [{"type": "text", "text": arguments["text"]}]}


async def opened(store, folder, number, tool):
    storage = MemoryStorage() if store == "memory" else await open_posix_sqlite_storage(os.path.join(folder, f"{number}.db"))
    registry = create_registry()
    agent = {"model": {"provider": "p", "modelId": "m"}}
    if tool:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        echoing = define_tool(name="echo", description="Says it again", parameters=parameters, execute=echo)
        registry.install(define_extension(name="bench", tools=[echoing]))
    harness = await Harness.open(storage, {"models": Scripted(tool), "registry": registry}, BACKGROUND_CONTEXT)
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


async def turns(store, script, sessions, count, folder):
    tool = script == "tool"
    open_ones = [await opened(store, folder, number, tool) for number in range(sessions)]
    wall, used = time.perf_counter(), cpu()
    await asyncio.gather(*(talk(conversation, count) for _, conversation in open_ones))
    wall, used = time.perf_counter() - wall, cpu() - used
    kinds = [entry["kind"] for entry in (await open_ones[0][1].entries({}, 20, None, BACKGROUND_CONTEXT))["items"]]
    print(json.dumps({
        "who": "pi-durable-python", "store": store, "durability": "process" if store == "sqlite" else "none", "script": script,
        "sessions": sessions, "turns": sessions * count, "wall": wall, "cpu": used, "kinds": list(reversed(kinds)),
    }))
    for harness, _ in open_ones:
        await harness.close(BACKGROUND_CONTEXT)


if __name__ == "__main__":
    _, mode, store, script, sessions, count, folder = sys.argv
    asyncio.run(turns(store, script, int(sessions), int(count), folder))
