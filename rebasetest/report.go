package rebasetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rebasejobs/rebase"
)

// What a test that fails has to say: a line for each job, with what tells it apart and why it
// is where it is. The list is short even if the table isn't.

const (
	listed     = 20  // jobs in a list
	shortBytes = 200 // of a payload
)

// list writes one line for each job.
func list(t TB, tx pgx.Tx, jobs []*rebase.Job) string {
	t.Helper()
	var now time.Time
	if err := tx.QueryRow(t.Context(), "select statement_timestamp()").Scan(&now); err != nil {
		t.Fatalf("rebasetest: read the database's clock: %v", err)
	}
	var b strings.Builder
	for i, job := range jobs {
		if i == listed {
			fmt.Fprintf(&b, "\n\tand %d more", len(jobs)-i)
			break
		}
		b.WriteString("\n\t" + describe(job, now))
	}
	return b.String()
}

// describe is one job in a line.
func describe(job *rebase.Job, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %d: %s", job.ID, job.Status)
	if job.Status == rebase.StatusPending {
		b.WriteString(", " + due(job.RunAt.Sub(now)))
	}
	if job.Attempts > 0 {
		fmt.Fprintf(&b, ", attempts %d of %d", job.Attempts, job.MaxAttempts)
	}
	if job.Lane != "" {
		fmt.Fprintf(&b, ", lane %q", job.Lane)
	}
	if job.IdempotencyKey != "" {
		fmt.Fprintf(&b, ", key %q", job.IdempotencyKey)
	}
	fmt.Fprintf(&b, ", payload %s", short(job.Payload))
	if job.LastError != "" {
		fmt.Fprintf(&b, ", last error %q", short([]byte(job.LastError)))
	}
	return b.String()
}

func due(in time.Duration) string {
	if in <= 0 {
		return "due"
	}
	return fmt.Sprintf("due in %v", max(in.Round(100*time.Millisecond), 100*time.Millisecond))
}

// short cuts at a whole character.
func short(text []byte) string {
	if len(text) <= shortBytes {
		return string(text)
	}
	return strings.ToValidUTF8(string(text[:shortBytes]), "") + "…"
}

// othersSQL relies on the primary key.
const othersSQL = `
select id, task, status
from rebase.jobs
where task <> $1
order by id desc
limit 20`

// others says what there is when the task has no jobs: a name may be mistyped.
func others(t TB, tx pgx.Tx, task string) string {
	t.Helper()
	var b strings.Builder
	var id int64
	var name, status string
	rows, err := tx.Query(t.Context(), othersSQL, task)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &name, &status}, func() error {
			fmt.Fprintf(&b, "\n\tjob %d of task %q: %s", id, name, status)
			return nil
		})
	}
	if err != nil {
		t.Fatalf("rebasetest: list the jobs of other tasks than %q: %v", task, err)
	}
	if b.Len() == 0 {
		return "this transaction sees no jobs at all"
	}
	return "of other tasks this transaction sees, newest first:" + b.String()
}
