// pi-ai's half: node --expose-gc pi.mjs decode|memory API URL STREAMS. Prints a line of JSON.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const WARM_UP = 10;
const APIS = {
  chat: { api: "openai-completions", path: "/v1" },
  messages: { api: "anthropic-messages", path: "" },
  responses: { api: "openai-responses", path: "/v1" },
};

const [mode, name, url, count] = process.argv.slice(2);
const { api, path } = APIS[name];
const { streamSimple } = await import(`@earendil-works/pi-ai/api/${api}`);
const context = { messages: [{ role: "user", content: "Go on.", timestamp: 1 }] };

function open(prefix) {
  const model = {
    id: "bench-model", name: "Bench", api, provider: "bench", baseUrl: url + prefix + path, reasoning: false, input: ["text"],
    cost: { input: 3, output: 15, cacheRead: 0.3, cacheWrite: 3.75 }, contextWindow: 200000, maxTokens: 8192,
  };
  return streamSimple(model, context, { apiKey: "test-key" });
}

// Every event has the message so far, which pi-ai keeps.
async function decode() {
  let final;
  for await (const event of open("")) {
    if (event.type === "error") throw new Error(event.error.errorMessage);
    if (event.type === "done") final = event.message;
  }
  return final;
}

async function timed() {
  for (let done = 0; done < WARM_UP; done++) await decode();
  const wall = [], cpu = [];
  let final;
  for (let done = 0; done < Number(count); done++) {
    const from = performance.now(), spent = process.cpuUsage();
    final = await decode();
    const used = process.cpuUsage(spent);
    wall.push(performance.now() - from);
    cpu.push((used.user + used.system) / 1000);
  }
  const all = (type) => final.content.filter((block) => block.type === type);
  return {
    wall, cpu,
    text: [...all("text").map((block) => block.text).join("")].length,
    thinking: [...all("thinking").map((block) => block.thinking).join("")].length,
    arguments: all("toolCall")[0].arguments,
    output: final.usage.output,
  };
}

function resident() {
  globalThis.gc();
  return Number(/^VmRSS:\s*(\d+)/m.exec(readFileSync("/proc/self/status", "utf8"))[1]);
}

// Streams that got their half and wait for the rest; `characters` is what they have of thinking and text.
async function held() {
  for (let done = 0; done < WARM_UP; done++) await decode();
  const before = resident();
  let events = 0, characters = 0;
  const streams = Array.from({ length: Number(count) }, () => open("/half"));
  for (const stream of streams) {
    void (async () => {
      for await (const event of stream) {
        events++;
        if (event.type === "error") throw new Error(event.error.errorMessage);
        if (event.type === "text_delta" || event.type === "thinking_delta") characters += [...event.delta].length;
      }
    })();
  }
  for (let last = -1; last !== events || events === 0; ) {
    last = events;
    await sleep(3000);
  }
  return { before, after: resident(), streams: streams.length, characters };
}

const result = mode === "decode" ? await timed() : await held();
process.stdout.write(`${JSON.stringify({ who: "pi-ai", mode, api: name, ...result })}\n`, () => process.exit(0));
