"""Reads the lines of both programs and prints the tables; fails where they did not do the same."""

import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
cases = {}
for row in rows:
    cases.setdefault((row["store"], row["script"], row["sessions"]), []).append(row)

print("| store | script | sessions | who | durability | turns | turns/s | CPU a turn, ms | turns/s against theirs | CPU a turn against theirs |")
print("|---|---|---:|---|---|---:|---:|---:|---:|---:|")
for (store, script, sessions), found in cases.items():
    # Ours writes the prompt and the tools down as entries; the rest is the same work.
    said = [[kind for kind in row["kinds"] if kind != "pi.system"] for row in found]
    if len({json.dumps(kinds[-10:]) for kinds in said}) != 1:
        raise SystemExit(f"the entries of {store} {script} {sessions} differ: {[row['kinds'] for row in found]}")
    theirs = next(row for row in found if row["who"] != "picofleet")
    for row in found:
        rate, base = row["turns"] / row["wall"], theirs["turns"] / theirs["wall"]
        cost, theirs_cost = row["cpu"] / row["turns"], theirs["cpu"] / theirs["turns"]
        print(
            f"| {store} | {script} | {sessions} | {row['who']} | {row['durability']} | {row['turns']} | {rate:,.0f} | {cost * 1000:.2f} "
            f"| {rate / base:.1f} x | 1/{theirs_cost / cost:.1f} |"
        )
