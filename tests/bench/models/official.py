"""The half of the official packages: official.py decode|memory API URL STREAMS [events]. Prints a line of JSON.

Without `events` the package puts the answer together (`stream()`); with it the package gives its events
(`create(stream=True)`) and this script joins the pieces, which is the least that a caller can do.
"""

import asyncio
import gc
import json
import sys
import time

import anthropic
import openai

WARM_UP = 10
MESSAGES = [{"role": "user", "content": "Go on."}]
CHAT = {"model": "bench-model", "messages": MESSAGES}
CLAUDE = {**CHAT, "max_tokens": 8192}
RESPONSE = {"model": "bench-model", "input": "Go on."}


def joined(text, thinking, arguments, output):
    return {"text": "".join(text), "thinking": "".join(thinking), "arguments": json.loads("".join(arguments)), "output": output}


def whole_chat(client):
    with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    message = final.choices[0].message
    arguments = message.tool_calls[0].function.arguments
    return joined([message.content], [message.reasoning_content], [arguments], final.usage.completion_tokens)


def chat_events(client):
    text, thinking, arguments, output = [], [], [], 0
    for chunk in client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            output = chunk.usage.completion_tokens
        for choice in chunk.choices:
            delta = choice.delta
            if delta.content:
                text.append(delta.content)
            if more := getattr(delta, "reasoning_content", None):
                thinking.append(more)
            for call in delta.tool_calls or ():
                arguments.append(call.function.arguments)
    return joined(text, thinking, arguments, output)


def whole_messages(client):
    with client.messages.stream(**CLAUDE) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    found = {block.type: block for block in final.content}
    text, thinking = found["text"].text, found["thinking"].thinking
    return {"text": text, "thinking": thinking, "arguments": found["tool_use"].input, "output": final.usage.output_tokens}


def messages_events(client):
    text, thinking, arguments, output = [], [], [], 0
    for event in client.messages.create(**CLAUDE, stream=True):
        if event.type == "message_delta":
            output = event.usage.output_tokens
        elif event.type == "content_block_delta":
            delta = event.delta
            if delta.type == "text_delta":
                text.append(delta.text)
            elif delta.type == "thinking_delta":
                thinking.append(delta.thinking)
            elif delta.type == "input_json_delta":
                arguments.append(delta.partial_json)
    return joined(text, thinking, arguments, output)


def whole_responses(client):
    with client.responses.stream(**RESPONSE) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    found = {item.type: item for item in final.output}
    thinking, text = found["reasoning"].summary[0].text, found["message"].content[0].text
    return joined([text], [thinking], [found["function_call"].arguments], final.usage.output_tokens)


def responses_events(client):
    text, thinking, arguments, output = [], [], [], 0
    for event in client.responses.create(**RESPONSE, stream=True):
        if event.type == "response.output_text.delta":
            text.append(event.delta)
        elif event.type == "response.reasoning_summary_text.delta":
            thinking.append(event.delta)
        elif event.type == "response.function_call_arguments.delta":
            arguments.append(event.delta)
        elif event.type == "response.completed":
            output = event.response.usage.output_tokens
    return joined(text, thinking, arguments, output)


WHOLE = {"chat": whole_chat, "messages": whole_messages, "responses": whole_responses}
EVENTS = {"chat": chat_events, "messages": messages_events, "responses": responses_events}


def client(api, url, is_async=False):
    if api == "messages":
        return (anthropic.AsyncAnthropic if is_async else anthropic.Anthropic)(base_url=url, api_key="test-key")
    return (openai.AsyncOpenAI if is_async else openai.OpenAI)(base_url=f"{url}/v1", api_key="test-key")


def timed(api, url, streams, decode):
    own = client(api, url)
    for _ in range(WARM_UP):
        decode(own)
    wall, cpu = [], []
    for _ in range(streams):
        start, spent = time.perf_counter(), time.process_time()
        found = decode(own)
        wall.append((time.perf_counter() - start) * 1000)
        cpu.append((time.process_time() - spent) * 1000)
    return {**found, "text": len(found["text"]), "thinking": len(found["thinking"]), "wall": wall, "cpu": cpu}


def resident():
    gc.collect()
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])


def new_characters(api, event):
    """How much of thinking and text an event of `stream()` brings."""
    if api == "chat":
        if event.type != "chunk":
            return 0
        deltas = [choice.delta for choice in event.chunk.choices]
        return sum(len(delta.content or "") + len(getattr(delta, "reasoning_content", None) or "") for delta in deltas)
    if api == "messages":
        if event.type != "content_block_delta":
            return 0
        return len(getattr(event.delta, "text", "")) + len(getattr(event.delta, "thinking", ""))
    if event.type == "response.reasoning_summary_part.done":
        # The other decoders put a blank line between the parts of a summary.
        return 2
    counted = event.type in ("response.output_text.delta", "response.reasoning_summary_text.delta")
    return len(event.delta) if counted else 0


async def held(api, url, streams):
    """Streams that got their half and wait for the rest; `characters` is what they have of thinking and text."""
    for _ in range(WARM_UP):
        WHOLE[api](client(api, url))
    own = client(api, f"{url}/half", is_async=True)
    opened = {
        "chat": lambda: own.chat.completions.stream(**CHAT, stream_options={"include_usage": True}),
        "messages": lambda: own.messages.stream(**CLAUDE),
        "responses": lambda: own.responses.stream(**RESPONSE),
    }[api]
    events = characters = 0

    async def read():
        nonlocal events, characters
        async with opened() as stream:
            async for event in stream:
                events += 1
                characters += new_characters(api, event)

    before = resident()
    tasks = [asyncio.create_task(read()) for _ in range(streams)]
    last = -1
    while last != events or events == 0:
        last = events
        await asyncio.sleep(3)
        for task in tasks:
            if task.done():
                task.result()
                raise RuntimeError("a stream ended that stays open")
    after = resident()
    return {"before": before, "after": after, "streams": streams, "characters": characters}


def main():
    mode, api, url, streams = *sys.argv[1:4], int(sys.argv[4])
    events = sys.argv[5:] == ["events"]
    package = "anthropic" if api == "messages" else "openai"
    who = f"{package} create(stream=True)" if events else f"{package} stream()"
    if mode == "decode":
        result = timed(api, url, streams, (EVENTS if events else WHOLE)[api])
    else:
        result = asyncio.run(held(api, url, streams))
    print(json.dumps({"who": who, "mode": mode, "api": api, **result}))


main()
