package rebase_test

// What is wanted of each statement's plan. The bounds are for fifty jobs at most, about
// three times what was measured; a plan that depends on the size of the table exceeds them
// a hundredfold.

const planClaim = "77, 'w', '5 minutes', true, "

func fixedArgs(s string) func(*planTable) string { return func(*planTable) string { return s } }

var planWants = map[string]planWant{
	"claimSQL": {
		args:    fixedArgs(planClaim + `'{plain,other}', array['', ''], '{50,50}', array['0001-01-01 00:00Z'::timestamptz, '0001-01-01 00:00Z'], '{0,0}', 50`),
		indexes: []string{"jobs_unfinished"}, cond: "task lane run_at ROW", buffers: 1200, head: true,
	},
	"claimLanesSQL": {
		args:    fixedArgs(planClaim + `'laned', '', 20, 2, '{lane1}', array['0001-01-01 00:00Z'::timestamptz], '{0}', 40, 0`),
		indexes: []string{"jobs_unfinished", "jobs_pkey"}, cond: "task lane", buffers: 1200, head: true,
	},
	// With a limit for each lane it counts what is running.
	"claimLanesSQL limited": {
		args:    fixedArgs(planClaim + `'laned', '', 20, 2, '{lane1}', array['0001-01-01 00:00Z'::timestamptz], '{0}', 40, 2`),
		indexes: []string{"jobs_unfinished", "jobs_pkey"}, cond: "task lane", buffers: 1200, head: true, running: true, sorts: true,
	},
	// From a floor, dead entries below it cost nothing.
	"claimSQL floor": {
		args:    fixedArgs(planClaim + `'{plain}', array[''], '{50}', array[now() - interval '1 hour'], '{0}', 50`),
		indexes: []string{"jobs_unfinished"}, cond: "task lane run_at ROW", buffers: 1200,
	},
	"claimSQL paused": {
		args:    fixedArgs(planClaim + `'{paused}', array[''], '{50}', array['0001-01-01 00:00Z'::timestamptz], '{0}', 50`),
		indexes: []string{"jobs_unfinished"}, cond: "task lane run_at ROW", buffers: 20,
	},
	"claimIDsSQL": {
		args:    func(f *planTable) string { return planClaim + f.due + ", 50" },
		indexes: []string{"jobs_pkey"}, cond: "id", buffers: 1500,
	},
	"claimReapedSQL": {
		args:    fixedArgs(planClaim + `'{plain,other}', '{0,2}'`),
		indexes: []string{"jobs_reaped", "jobs_pkey"}, cond: "task run_at", buffers: 200,
	},
	"lanedSQL": {args: fixedArgs(`'{plain,laned,other}'`), indexes: []string{"jobs_unfinished"}, cond: "task lane", buffers: 150},
	"idleSQL": {
		args: fixedArgs(`'{plain,laned,other}'`), indexes: []string{"jobs_unfinished", "jobs_reaped"}, cond: "task lane", buffers: 150, head: true, small: true,
	},
	"idleLanesSQL": {args: fixedArgs(`'laned', e'\\001', 10000`), indexes: []string{"jobs_unfinished"}, cond: "task lane", buffers: 300},
	"headSQL": {
		args:    fixedArgs(`'{plain,laned}', array['', 'lane7'], array['9999-12-31 00:00Z'::timestamptz, now() - interval '1 hour'], '{0,0}', '{1,1000}'`),
		indexes: []string{"jobs_unfinished"}, cond: "task lane run_at ROW", buffers: 500, head: true,
	},
	"reapedDueSQL": {args: fixedArgs(`'{plain,other}'`), indexes: []string{"jobs_reaped"}, cond: "task", buffers: 60},
	"succeedSQL": {
		args:    func(f *planTable) string { return f.running + ", " + f.tokens + ", '1 s'" },
		indexes: []string{"jobs_pkey"}, cond: "id", buffers: 2500,
	},
	"recordSQL": {
		args: func(f *planTable) string {
			fill := func(s string) string { return "array_fill(" + s + "::text, array[cardinality(" + f.running + ")])" }
			return f.running + ", " + f.tokens + ", " + fill("'failed'") + ", " + fill("'boom'") + ", " + fill("'1 s'") + ", " + fill("'1 s'") + ", 0"
		},
		indexes: []string{"jobs_pkey"}, cond: "id", buffers: 3500, sorts: true,
	},
	"answerSQL": {args: func(f *planTable) string { return f.running }, indexes: []string{"jobs_pkey"}, cond: "id", buffers: 500},
	"overSQL":   {args: func(f *planTable) string { return f.tokens + ", pg_postmaster_start_time()" }, indexes: []string{"jobs_pkey"}, cond: "id", buffers: 300},
	"renewSQL": {
		args:    func(f *planTable) string { return f.running + ", " + f.tokens + ", '{}', '5 minutes'" },
		indexes: []string{"jobs_pkey"}, cond: "id", buffers: 2500,
	},
	"renewClaimsSQL": {args: func(f *planTable) string { return f.tokens + ", '5 minutes'" }, buffers: 300},
	"heartbeatSQL": {
		args: fixedArgs(`'w7', 'h', '{plain}', 5, '5 minutes', '{}', '{}'`), buffers: 300, small: true,
	},
	"unservedSQL": {args: fixedArgs(""), indexes: []string{"jobs_unfinished"}, cond: "", buffers: 2000, head: true},
	"expiredSQL":  {args: fixedArgs("'1 hour'"), buffers: 200, small: true},
	"reapSQL": {
		args: func(f *planTable) string { return f.expired + ", false, 0, null" }, indexes: []string{"jobs_pkey"}, cond: "id", buffers: 8000, sorts: true,
	},
	"heldSQL": {
		args: func(f *planTable) string { return "(" + f.expired + ")[1]" }, indexes: []string{"jobs_pkey"}, cond: "id", buffers: 3000,
	},
	"giveBackSQL": {
		args: func(f *planTable) string { return f.expired + ", 0" }, indexes: []string{"jobs_pkey"}, cond: "id", buffers: 8000, sorts: true,
	},
	"emptyClaimsSQL": {args: func(f *planTable) string { return f.expired }, indexes: []string{"jobs_pkey"}, cond: "id", buffers: 100},
	"purgeSQL": {
		args: fixedArgs("'3 days', 50, '0001-01-01 00:00Z', '{1,2}'"), indexes: []string{"jobs_finished_at"}, cond: "finished_at", buffers: 1000,
	},
	"purgeDeadSQL": {
		args: fixedArgs("'30 days', 50, '0001-01-01 00:00Z', '{1,2}'"), indexes: []string{"jobs_dead"}, cond: "finished_at", buffers: 1000,
	},
	"oldestSQL": {
		args: fixedArgs("'3 days', 1, '0001-01-01 00:00Z', '{1,2}'"), indexes: []string{"jobs_finished_at"}, cond: "finished_at", buffers: 100,
	},
	"oldestDeadSQL": {
		args: fixedArgs("'30 days', 1, '0001-01-01 00:00Z', '{1,2}'"), indexes: []string{"jobs_dead"}, cond: "finished_at", buffers: 100,
	},
	"insertOneSQL": {
		args:    fixedArgs(`'plain', '', '{}', null, null, '0', 3, 'new', 'newnewnewnewnewn'::bytea, null, null, 0`),
		buffers: 200,
	},
	"insertPlainSQL": {args: fixedArgs(`'plain', '', '{}', null, 3, 0`), buffers: 200},
	"insertPlainManySQL": {
		args: fixedArgs(`array_fill('plain'::text, '{50}'), array_fill(''::text, '{50}'), array_fill('{}'::text, '{50}'), array_fill(null::text, '{50}'),
			array_fill(null::timestamptz, '{50}'), array_fill('0'::text, '{50}'), array_fill(3, '{50}'), 0`),
		buffers: 2500, sorts: true,
	},
	"insertManySQL": {
		args: fixedArgs(`array_fill('plain'::text, '{50}'), array_fill(''::text, '{50}'), array_fill('{}'::text, '{50}'), array_fill(null::text, '{50}'),
			array_fill(null::timestamptz, '{50}'), array_fill('0'::text, '{50}'), array_fill(3, '{50}'), array_fill(null::text, '{50}'), array_fill(null::text, '{50}'), 0`),
		buffers: 2500, sorts: true,
	},
	"findDuplicatesSQL": {
		args:    fixedArgs(`'{plain}', array[encode(substring(sha256('key9990') from 1 for 16), 'hex')]`),
		indexes: []string{"jobs_key"}, cond: "task key_hash", buffers: 20,
	},
	"orphanSQL": {
		args:    fixedArgs("'laned', '', '0001-01-01 00:00Z', 0, 100"),
		indexes: []string{"jobs_unfinished"}, cond: "ROW", buffers: 1000, head: true, sorts: true,
	},
	"completeTxSQL": {args: fixedArgs("7, 7, '1s'"), indexes: []string{"jobs_pkey"}, cond: "id", buffers: 20},
}
