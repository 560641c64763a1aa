package rebase

// What the tests of claims need from inside the package: the statements as they are
// sent, for looking at their plans; and an engine without its loops, so that a test can
// take one step at a time and decide who does what next. Nothing here repeats what the
// product does: every step is a call of the function that the loops call.

// WorkerStatements are the statements of a worker, by the names of their constants.
var WorkerStatements = map[string]string{
	"claimSQL": claimSQL, "claimLanesSQL": claimLanesSQL, "claimIDsSQL": claimIDsSQL, "claimReapedSQL": claimReapedSQL,
	"idleSQL": idleSQL, "lanedSQL": lanedSQL, "idleLanesSQL": idleLanesSQL, "headSQL": headSQL, "reapedDueSQL": reapedDueSQL,
	"succeedSQL": succeedSQL, "recordSQL": recordSQL, "answerSQL": answerSQL, "overSQL": overSQL,
	"renewSQL": renewSQL, "renewClaimsSQL": renewClaimsSQL, "heartbeatSQL": heartbeatSQL, "unservedSQL": unservedSQL,
	"expiredSQL": expiredSQL, "reapSQL": reapSQL, "heldSQL": heldSQL, "giveBackSQL": giveBackSQL, "emptyClaimsSQL": emptyClaimsSQL,
	"purgeSQL": purgeSQL + "j.finished_at", "purgeDeadSQL": purgeDeadSQL + "j.finished_at", "oldestSQL": oldestSQL, "oldestDeadSQL": oldestDeadSQL,
	"insertOneSQL": insertOneSQL, "insertPlainSQL": insertPlainSQL, "insertPlainManySQL": insertPlainManySQL, "insertManySQL": insertManySQL, "findDuplicatesSQL": findDuplicatesSQL,
	"completeTxSQL": completeTxSQL, "orphanSQL": orphanSQL,
}

// WorkerSettings is the statement that precedes them in each transaction of a worker's.
const WorkerSettings = settingsSQL
