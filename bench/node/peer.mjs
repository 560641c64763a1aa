// One queue of the Node.js world as a child process of the benchmark.
//
//   node peer.mjs graphile|pgboss URL
//
// Standard input has a command a line, as JSON; each is answered by one line with its id. While
// a worker runs, lines {"handled": n} say how many handlers have run since the last: they are
// gathered for 2 ms, so that telling costs the worker little. The end of the input ends the
// process.
import { createInterface } from "node:readline";

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

// graphile-worker: a local queue of 500 jobs, completions in batches without a delay.
async function graphile() {
  const { makeWorkerUtils, run, Logger } = await import("graphile-worker");
  const logger = new Logger(() => () => {});
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  let runner = null;
  return {
    migrate: () => utils.migrate(),
    insert: ({ n, keys, other }) =>
      utils.addJobs(
        repeat(n, () => ({
          identifier: other ? unserved : task,
          payload: { sent: 0 },
          ...(keys ? { jobKey: nextKey() } : {}),
        })),
      ),
    work: async ({ slots }) => {
      runner = await run({
        preset: {
          worker: {
            connectionString: url,
            logger,
            concurrentJobs: slots,
            maxPoolSize: 20,
            localQueue: { size: Math.max(500, slots + 1) },
            completeJobBatchDelay: 0,
            failJobBatchDelay: 0,
          },
        },
        noHandleSignals: true,
        taskList: { [task]: async () => count(1) },
      });
    },
    stop: () => runner.stop(),
    close: () => utils.release(),
  };
}

// pg-boss: a worker that takes a batch and, while batches are full, the next one at once.
async function pgboss() {
  const { PgBoss } = await import("pg-boss");
  const boss = new PgBoss({ connectionString: url, max: 20, schedule: false });
  boss.on("error", (err) => process.stderr.write(`pg-boss: ${err}\n`));
  return {
    migrate: async () => {
      await boss.start();
      await boss.createQueue(task);
      await boss.createQueue(unserved);
    },
    insert: ({ n, keys, other }) =>
      boss.insert(
        other ? unserved : task,
        repeat(n, () => ({ data: { sent: 0 }, ...(keys ? { singletonKey: nextKey() } : {}) })),
      ),
    work: ({ slots }) =>
      boss.work(
        task,
        { batchSize: slots, pollingIntervalSeconds: 0.5, burstWhenBatchFull: slots > 1 },
        async (jobs) => count(jobs.length),
      ),
    stop: () => boss.offWork(task, { wait: true }),
    close: () => boss.stop({ graceful: false }),
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
