// One queue of the Node.js world as a child process of the benchmark.
//
//   node peer.mjs graphile|pgboss URL
//
// Workers that are to idle are as many as asked for, each with the library's defaults and a
// small pool; those that are to work are one, with the settings that make it quickest.
//
// Standard input has a command a line, as JSON; each is answered by one line with its id. While
// a worker runs, lines {"handled": n} say how many handlers have run since the last: they are
// gathered for 2 ms, so that telling costs the worker little. The end of the input ends the
// process.
import { createInterface } from "node:readline";
import { randomBytes, randomInt } from "node:crypto";

const [, , name, url] = process.argv;
const task = "bench";
const unserved = "bench-unserved";

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

let handled = 0;
let timer = null;
function count(n) {
  handled += n;
  timer ??= setTimeout(() => {
    say({ handled });
    handled = 0;
    timer = null;
  }, 2);
}

let lastKey = 0;
const nextKey = () => String(++lastKey);
const repeat = (n, make) => Array.from({ length: n }, make);
const idleConns = 3;

// payload has ballast like that of the systems in Go: random text of random length.
function payload(bytes) {
  if (!bytes) return { sent: 0 };
  const raw = Math.floor(((bytes >> 1) + randomInt(bytes + 1)) * 3 / 4);
  return { sent: 0, data: randomBytes(raw).toString("base64") };
}

// graphile-worker: a local queue of 500 jobs, completions in batches without a delay.
async function graphile() {
  const { makeWorkerUtils, run, Logger } = await import("graphile-worker");
  const logger = new Logger(() => () => {});
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  let runners = [];
  return {
    migrate: () => utils.migrate(),
    insert: ({ n, keys, other, bytes }) =>
      utils.addJobs(
        repeat(n, () => ({
          identifier: other ? unserved : task,
          payload: payload(bytes),
          ...(keys ? { jobKey: nextKey() } : {}),
        })),
      ),
    work: async ({ slots, workers, idle }) => {
      const common = { connectionString: url, logger, concurrentJobs: slots };
      const worker = idle
        ? { ...common, maxPoolSize: idleConns }
        : {
            ...common,
            maxPoolSize: 20,
            localQueue: { size: Math.max(500, slots + 1) },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0,
          };
      const options = {
        preset: { worker },
        noHandleSignals: true,
        taskList: { [task]: async () => count(1) },
      };
      runners = await Promise.all(repeat(workers, () => run(options)));
    },
    stop: () => Promise.all(runners.map((runner) => runner.stop())),
    close: () => utils.release(),
  };
}

// pg-boss: a worker that takes a batch and, while batches are full, the next one at once.
async function pgboss() {
  const { PgBoss } = await import("pg-boss");
  const open = (max) => {
    const boss = new PgBoss({ connectionString: url, max, schedule: false });
    boss.on("error", (err) => process.stderr.write(`pg-boss: ${err}\n`));
    return boss;
  };
  const boss = open(20);
  let started = null; // once, whatever comes first
  const start = () => (started ??= boss.start());
  let idlers = [];
  return {
    migrate: async () => {
      await start();
      await boss.createQueue(task);
      await boss.createQueue(unserved);
    },
    insert: ({ n, keys, other, bytes }) =>
      boss.insert(
        other ? unserved : task,
        repeat(n, () => ({ data: payload(bytes), ...(keys ? { singletonKey: nextKey() } : {}) })),
      ),
    work: async ({ slots, workers, idle }) => {
      if (!idle) {
        await start();
        const options = { batchSize: slots, pollingIntervalSeconds: 0.5, burstWhenBatchFull: slots > 1 };
        await boss.work(task, options, async (jobs) => count(jobs.length));
        return;
      }
      idlers = repeat(workers, () => open(idleConns));
      await Promise.all(
        idlers.map(async (idler) => {
          await idler.start();
          await idler.work(task, async (jobs) => count(jobs.length));
        }),
      );
    },
    stop: async () => {
      await Promise.all(idlers.map((idler) => idler.stop({ graceful: false })));
      if (started && idlers.length === 0) await boss.offWork(task, { wait: true });
      idlers = [];
    },
    close: async () => started && boss.stop({ graceful: false }),
  };
}

const peer = await { graphile, pgboss }[name]();
for await (const line of createInterface({ input: process.stdin })) {
  const { id, cmd, ...rest } = JSON.parse(line);
  try {
    await peer[cmd](rest);
    say({ id });
  } catch (err) {
    say({ id, error: String(err?.stack ?? err) });
  }
}
process.exit(0);
