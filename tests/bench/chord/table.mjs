// Joins the two outputs into a table. Arguments: file of chord, file of the Rust half.
import { readFileSync } from "node:fs";

function figures(file) {
  const lines = readFileSync(file, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  const measured = lines.slice(lines.indexOf("measured") + 1);
  return new Map(measured.map(({ script, size, ns }) => [`${script}|${size}`, ns]));
}

const us = (ns) => (ns === undefined ? "-" : (ns / 1000).toFixed(2));
const ratio = (theirs, ours) => (theirs === undefined || ours === undefined ? "-" : `${(theirs / ours).toFixed(1)}x`);
const [chord, rust] = process.argv.slice(2).map(figures);
console.log("| script | size | chord change us | chord track us | picofleet us | change ratio | track ratio | chord apply us | picofleet apply us | ratio |");
console.log("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
for (const key of rust.keys()) {
  const [script, size] = key.split("|");
  if (!script.endsWith(", change")) continue;
  const name = script.replace(", change", "");
  const of = (figures, kind) => figures.get(`${name}, ${kind}|${size}`);
  const ours = rust.get(key);
  const cells = [
    name, size, us(of(chord, "change")), us(of(chord, "track")), us(ours), ratio(of(chord, "change"), ours), ratio(of(chord, "track"), ours),
    us(of(chord, "apply")), us(of(rust, "apply")), ratio(of(chord, "apply"), of(rust, "apply")),
  ];
  console.log(`| ${cells.join(" | ")} |`);
}
