"""Writes one recorded stream for each API into a folder: chat.sse, messages.sse, responses.sse.

Usage: generate.py FOLDER. Each is just below a million bytes, the same in every run. The shapes are those of the
providers: deltas of one token, thinking, a text, one tool call whose arguments stream, usage at the end.
"""

import json
import pathlib
import sys

SIZE = 1_000_000
MODEL = "bench-model"
TOOL = "write_file"

# Pieces as tokenizers cut them: words with their space, punctuation, line breaks, what JSON escapes, what is no ASCII.
TOKENS = [
    " the", " stream", " of", " tokens", ",", " which", " a", " model", " writes", ".", " It", " has", " words", " and",
    " numbers", " 42", ":", "\n\n", "```", "rust", "\n", "    let", " value", " =", ' "', "text", '"', ";", " //", " caf",
    "é", " naïve", " 日本", "語", " 😀", " path", "\\", "n", " implementation", " considered", " therefore", "(", ")", " {", "}\n",
]


def pieces(count, seed):
    """Tokens in an order that a linear congruential generator gives."""
    found = []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append(TOKENS[(seed >> 33) % len(TOKENS)])
    return found


def argument_pieces(count):
    """The argument text of the call, cut as a model would stream it."""
    arguments = {
        "path": "src/notes.md",
        "overwrite": True,
        "edits": [{"line": line, "text": "".join(pieces(12, line))} for line in range(1, 1 + count // 40)],
        "content": "".join(pieces(count // 2, 3)),
    }
    text = json.dumps(arguments, ensure_ascii=False)
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def padding(number):
    """What OpenAI pads its deltas with."""
    return "x8Kq2LmZp0RtYw"[: 2 + number * 7 % 12]


def chat(thinking, text, arguments, tokens):
    def chunk(delta, finish=None):
        return {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1_754_000_000,
            "model": MODEL,
            "service_tier": "default",
            "system_fingerprint": "fp_bench",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
            "usage": None,
        }

    def call(function, **more):
        return {"tool_calls": [{"index": 0, **more, "function": function}]}

    deltas = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"reasoning_content": piece} for piece in thinking]
    deltas += [{"content": piece} for piece in text]
    deltas += [call({"name": TOOL, "arguments": ""}, id="call_bench", type="function")]
    deltas += [call({"arguments": piece}) for piece in arguments]
    chunks = [{**chunk(delta), "obfuscation": padding(number)} for number, delta in enumerate(deltas)]
    chunks.append(chunk({}, "tool_calls"))
    usage = {
        "prompt_tokens": 1200,
        "completion_tokens": tokens,
        "total_tokens": 1200 + tokens,
        "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(thinking), "audio_tokens": 0},
    }
    chunks.append({**chunk({}), "choices": [], "usage": usage})
    return [f"data: {dump(one)}\n\n" for one in chunks] + ["data: [DONE]\n\n"]


def messages(thinking, text, arguments, tokens):
    def block(index, start, deltas):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    usage = {"input_tokens": 176, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1024, "output_tokens": 1}
    message = {
        "id": "msg_bench",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    signature = {"type": "signature_delta", "signature": "EqQBCkYIBRgCKkA" + "b3BhcXVl" * 40}
    events = [{"type": "message_start", "message": message}, {"type": "ping"}]
    thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in thinking]
    events += block(0, {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signature])
    events += block(1, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in text])
    start = {"type": "tool_use", "id": "toolu_bench", "name": TOOL, "input": {}}
    events += block(2, start, [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *arguments]])
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": tokens}})
    events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {dump(event)}\n\n" for event in events]


def responses(thinking, text, arguments, tokens):
    def response(status, output, usage):
        return {
            "id": "resp_bench",
            "object": "response",
            "created_at": 1_754_000_000,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "model": MODEL,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "service_tier": "default",
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": usage,
            "metadata": {},
        }

    def item(index, start, inner, whole):
        yield {"type": "response.output_item.added", "output_index": index, "item": start}
        for kind, more in inner:
            yield {"type": f"response.{kind}", "item_id": start["id"], "output_index": index, **more}
        yield {"type": "response.output_item.done", "output_index": index, "item": whole}

    def deltas(kind, found, more):
        return [(kind, {**more, "delta": piece, "obfuscation": padding(number)}) for number, piece in enumerate(found)]

    thought, said, called = "".join(thinking), "".join(text), "".join(arguments)
    summary = lambda text: {"type": "summary_text", "text": text}
    content = lambda text: {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    reasoning = lambda parts: {"id": "rs_bench", "type": "reasoning", "encrypted_content": "gAAAAA" * 50, "summary": parts}
    answer = lambda status, parts: {"id": "msg_bench", "type": "message", "status": status, "content": parts, "role": "assistant"}
    call = lambda status, text: {
        "id": "fc_bench",
        "type": "function_call",
        "status": status,
        "arguments": text,
        "call_id": "call_bench",
        "name": TOOL,
    }
    of_summary, of_text = {"summary_index": 0}, {"content_index": 0}
    whole = [reasoning([summary(thought)]), answer("completed", [content(said)]), call("completed", called)]
    events = [{"type": f"response.{kind}", "response": response("in_progress", [], None)} for kind in ("created", "in_progress")]
    inner = [("reasoning_summary_part.added", {**of_summary, "part": summary("")})]
    inner += deltas("reasoning_summary_text.delta", thinking, of_summary)
    inner += [("reasoning_summary_text.done", {**of_summary, "text": thought})]
    inner += [("reasoning_summary_part.done", {**of_summary, "part": summary(thought)})]
    events += item(0, reasoning([]), inner, whole[0])
    inner = [("content_part.added", {**of_text, "part": content("")})]
    inner += deltas("output_text.delta", text, {**of_text, "logprobs": []})
    inner += [("output_text.done", {**of_text, "text": said, "logprobs": []})]
    inner += [("content_part.done", {**of_text, "part": content(said)})]
    events += item(1, answer("in_progress", []), inner, whole[1])
    inner = deltas("function_call_arguments.delta", arguments, {})
    inner += [("function_call_arguments.done", {"arguments": called})]
    events += item(2, call("in_progress", ""), inner, whole[2])
    usage = {
        "input_tokens": 1200,
        "input_tokens_details": {"cached_tokens": 1024},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": len(thinking)},
        "total_tokens": 1200 + tokens,
    }
    events.append({"type": "response.completed", "response": response("completed", whole, usage)})
    lines = ({"type": event["type"], "sequence_number": number, **event} for number, event in enumerate(events))
    return [f"event: {event['type']}\ndata: {dump(event)}\n\n" for event in lines]


def stream(api, scale):
    """Two parts of thinking, five of text, about one and a half of arguments."""
    thinking, text, arguments = pieces(2 * scale, 1), pieces(5 * scale, 2), argument_pieces(scale)
    return api(thinking, text, arguments, len(thinking) + len(text) + len(arguments))


def largest(api):
    """The largest stream below the size."""
    low, high = 10, 10_000
    while low + 1 < high:
        middle = (low + high) // 2
        if len("".join(stream(api, middle)).encode()) <= SIZE:
            low = middle
        else:
            high = middle
    return stream(api, low)


def main():
    folder = pathlib.Path(sys.argv[1])
    for api in (chat, messages, responses):
        events = largest(api)
        data = "".join(events).encode()
        (folder / f"{api.__name__}.sse").write_bytes(data)
        print(f"{api.__name__}: {len(data):,} bytes, {len(events):,} events", file=sys.stderr)


main()
