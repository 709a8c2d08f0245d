// The Node half of the comparison: runs the scripts with the published chord and prints one JSON line for each, with
// nanoseconds a change. Argument: the number of changes.
import { replicatedState } from "@earendil-works/chord";
import { BACKGROUND_CONTEXT } from "@earendil-works/chord/context";
import { applyImmutable, track } from "@earendil-works/chord/delta";

const TEXT = "01234567890123456789";
const changes = Number(process.argv[2] ?? 2000);

function report(script, size, started, count) {
  const ns = Number(process.hrtime.bigint() - started) / count;
  console.log(JSON.stringify({ script, size, ns: Math.round(ns) }));
}

// A budget in time, because a slow script would take minutes at the full count.
function repeat(count, step) {
  const started = process.hrtime.bigint();
  let done = 0;
  while (done < count && (done < 20 || process.hrtime.bigint() - started < 3_000_000_000n)) step(done++);
  return [started, done];
}

function run(script, size, count, document, edit) {
  const state = replicatedState(document());
  const [started, done] = repeat(count, (n) => state.change(BACKGROUND_CONTEXT, (draft) => edit(draft, n)));
  report(`${script}, change`, size, started, done);

  const tracker = track(document());
  tracker.flush();
  const batches = [];
  const [trackStarted, tracked] = repeat(count, (n) => {
    edit(tracker.state, n);
    batches.push(tracker.flush());
  });
  report(`${script}, track`, size, trackStarted, tracked);

  let value = document();
  const [applyStarted, applied] = repeat(batches.length, (n) => {
    value = applyImmutable(value, batches[n]);
  });
  report(`${script}, apply`, size, applyStarted, applied);
}

for (const warm of [true, false]) {
  const count = warm ? Math.ceil(changes / 10) : changes;
  if (!warm) console.log(JSON.stringify("measured"));
  for (const size of [1_000, 10_000, 100_000, 1_000_000, 10_000_000]) {
    run("append 20 characters", size, count, () => ({ output: "x".repeat(size) }), (state) => {
      state.output += TEXT;
    });
  }
  for (const size of [100, 1_000, 10_000, 100_000]) {
    const document = () => ({ slots: Array.from({ length: size }, (_, id) => ({ id, status: "waiting" })) });
    run("set one slot", size, count, document, (state, n) => {
      state.slots[(n * 17) % size].status = `step ${n}`;
    });
  }
}
