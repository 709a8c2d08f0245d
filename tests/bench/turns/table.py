"""Reads the lines of both programs and prints a table for each mode; fails where they did not do the same."""

import json
import sys

OURS = "picofleet"


def main(path):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for mode, title, show in (
        ("turns", "Turns", turns),
        ("history", "A turn of one conversation, young and old", history),
        ("streams", "Sessions that stream ten pieces a second each", streams),
        ("watchers", "Observers of one conversation", watchers),
    ):
        found = [row for row in rows if row["mode"] == mode]
        if found:
            print(f"### {title}\n")
            show(found)
            print()
    print(
        "pi-durable-python has one SQLite file for each session, ours one for all. Its adapter for SQLite always has `synchronous = NORMAL`, our\n"
        "`process`; it has no counterpart of our `power`, whose ratios are against that."
    )


def cases(rows, *keys):
    """The rows by case, and theirs of the case."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    for case, members in found.items():
        theirs = [row for row in members if row["who"] != OURS]
        yield case, members, theirs[0] if theirs else None


def head(*columns):
    """The first lines of a table; the names of columns of text begin with a colon."""
    print(f"| {' | '.join(column.removeprefix(':') for column in columns)} |")
    print(f"|{'|'.join('---' if column.startswith(':') else '---:' for column in columns)}|")


def line(*cells):
    print(f"| {' | '.join(str(cell) for cell in cells)} |")


def ratio(value, base):
    return "-" if value is None or not base else f"{value / base:.2f}"


def turns(rows):
    head(":store", ":script", "sessions", ":who", ":durability", "turns", "turns/s", "CPU a turn, ms", "turns/s / theirs", "CPU / theirs")
    for (store, script, sessions), found, theirs in cases(rows, "store", "script", "sessions"):
        # Ours writes the prompt and the tools down as entries; the rest is the same work.
        said = [[kind for kind in row["kinds"] if kind != "pi.system"] for row in found]
        if len({json.dumps(kinds[-10:]) for kinds in said}) != 1:
            raise SystemExit(f"the entries of {store} {script} {sessions} differ: {[row['kinds'] for row in found]}")
        for row in found:
            rate, cost = row["turns"] / row["wall"], row["cpu"] / row["turns"]
            line(
                store, script, sessions, row["who"], row["durability"], row["turns"], f"{rate:,.0f}", f"{cost * 1e3:.2f}",
                ratio(rate, theirs and theirs["turns"] / theirs["wall"]), ratio(cost, theirs and theirs["cpu"] / theirs["turns"]),
            )


def history(rows):
    head(
        ":store", ":who", ":durability", ":turns", "wall a turn, us", "CPU a turn, us", "wall / young", "CPU / young", "wall / theirs", "CPU / theirs",
    )
    young = {(row["store"], row["who"], row["durability"]): row for row in rows if row["age"] == "young"}
    for (store, _, first, last), found, theirs in cases(rows, "store", "age", "first", "last"):
        for row in found:
            base = young[store, row["who"], row["durability"]]
            line(
                store, row["who"], row["durability"], f"{first} to {last}", f"{row['wall'] * 1e6:,.0f}", f"{row['cpu'] * 1e6:,.0f}",
                ratio(row["wall"], base["wall"]), ratio(row["cpu"], base["cpu"]),
                ratio(row["wall"], theirs and theirs["wall"]), ratio(row["cpu"], theirs and theirs["cpu"]),
            )


def streams(rows):
    head(
        ":store", "sessions", "seconds", ":who", ":durability", "pieces", "wall, s", "processors", "CPU a piece, us", "pieces seen of one in ten",
        "delay p50, ms", "delay p99, ms", "bytes written a piece", "CPU / theirs", "p99 / theirs", "bytes / theirs",
    )
    for (store, sessions, length, pieces), found, theirs in cases(rows, "store", "sessions", "seconds", "pieces"):
        for row in found:
            line(
                store, sessions, length, row["who"], row["durability"], f"{pieces:,}", f"{row['wall']:.1f}", f"{row['cpu'] / row['wall']:.2f}",
                f"{row['cpu'] / pieces * 1e6:,.0f}", f"{row['observed']:,}", "-" if row["p50"] is None else row["p50"],
                "-" if row["p99"] is None else row["p99"], f"{row['written'] / pieces:,.0f}", ratio(row["cpu"], theirs and theirs["cpu"]),
                ratio(row["p99"], theirs and theirs["p99"]), ratio(row["written"], theirs and theirs["written"]),
            )


def watchers(rows):
    head(
        ":store", ":observed by", "observers", ":who", ":durability", "CPU a turn, us", "changes each sees a turn", "CPU a change seen, us", "CPU / theirs",
    )
    alone = {(row["store"], row["interface"], row["who"], row["durability"]): row for row in rows if row["observers"] == 0}
    for (store, interface, observers, count), found, theirs in cases(rows, "store", "interface", "observers", "turns"):
        for row in found:
            changes = cost = "-"
            if observers and row["seen"]:
                base = alone[store, interface, row["who"], row["durability"]]
                extra = row["cpu"] - base["cpu"] * count / base["turns"]
                changes, cost = f"{row['seen'] / count / observers:.1f}", f"{extra / row['seen'] * 1e6:.1f}" if extra > 0 else "within noise"
            line(
                store, interface, observers, row["who"], row["durability"], f"{row['cpu'] / count * 1e6:,.0f}", changes, cost,
                ratio(row["cpu"], theirs and theirs["cpu"]),
            )


if __name__ == "__main__":
    main(sys.argv[1])
