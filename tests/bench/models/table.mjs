// Prints the tables of the lines of JSON in the given files. Fails when the programs did not decode the same.
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

const lines = process.argv.slice(2).flatMap((file) => readFileSync(file, "utf8").trim().split("\n")).map((line) => JSON.parse(line));
const names = { chat: "chat completions", messages: "Anthropic Messages", responses: "OpenAI Responses" };
const apis = (mode) => Object.keys(names).filter((api) => lines.some((line) => line.mode === mode && line.api === api));

function check(found, members) {
  for (const line of found) {
    for (const member of members) {
      if (found[0][member] === undefined || !isDeepStrictEqual(line[member], found[0][member])) {
        console.error(`void: ${line.who} and ${found[0].who} differ in ${member} of ${line.api}`);
        process.exit(1);
      }
    }
  }
}

function median(numbers) {
  const sorted = numbers.toSorted((a, b) => a - b);
  const half = sorted.length / 2;
  return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
}

const digits = (number) => number.toFixed(number < 10 ? 1 : 0);
// Two significant digits, without the exponent that `toPrecision` falls into.
const ratio = (number) => Number(number.toPrecision(2)).toLocaleString("en");

if (apis("decode").length > 0) console.log("\n| API | decoder | wall, ms | CPU, ms | MB/s | wall / ours | CPU / ours |\n|---|---|---:|---:|---:|---:|---:|");
for (const api of apis("decode")) {
  const found = lines.filter((line) => line.mode === "decode" && line.api === api);
  check(found, ["text", "thinking", "arguments", "output"]);
  const rows = found.map(({ who, wall, cpu }) => ({ who, wall: median(wall), cpu: median(cpu) }));
  const ours = rows.find((row) => row.who === "picofleet");
  for (const row of rows) {
    const ratios = [row.wall / ours.wall, row.cpu / ours.cpu].map(ratio);
    console.log(`| ${[names[api], row.who, digits(row.wall), digits(row.cpu), digits(1000 / row.wall), ...ratios].join(" | ")} |`);
  }
}

console.log("\n| API | decoder | open streams | before, MiB | after, MiB | KiB a stream | / ours |\n|---|---|---:|---:|---:|---:|---:|");
for (const api of apis("memory")) {
  const found = lines.filter((line) => line.mode === "memory" && line.api === api);
  check(found.map((line) => ({ ...line, characters: line.characters / line.streams })), ["characters"]);
  const each = (line) => (line.after - line.before) / line.streams;
  const ours = each(found.find((line) => line.who === "picofleet"));
  for (const line of found) {
    const mib = [line.before, line.after].map((kib) => Math.round(kib / 1024));
    console.log(`| ${[names[api], line.who, line.streams, ...mib, digits(each(line)), ratio(each(line) / ours)].join(" | ")} |`);
  }
}

const sizes = lines.filter((line) => line.mode === "decode" && line.who === "picofleet");
for (const { api, text, thinking, output } of sizes) {
  console.log(`\nThe same for all, ${names[api]}: ${text} characters of text, ${thinking} of thinking, the arguments, ${output} tokens.`);
}
