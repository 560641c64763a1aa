package rebase

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// A Job is one row of rebase.jobs as it was read. Reading is by hand instead of
// rows.Scan: it is on the path of every claim, and a row that can't be read must
// not take the rest of its batch with it.

// A Status is the state of a job, as it stands in the column status.
type Status string

const (
	StatusPending   Status = "pending"   // waits until RunAt, then for a free slot
	StatusRunning   Status = "running"   // claimed by a worker
	StatusSucceeded Status = "succeeded" // ended well
	StatusFailed    Status = "failed"    // a dead letter: no attempt left, or Permanent
	StatusCancelled Status = "cancelled" // ended by Cancel or by ErrCancelled
)

// A Job is a row of rebase.jobs. Handlers get one; changing it changes nothing in
// the database.
type Job struct {
	ID             int64
	Task           string
	Lane           string // "" for none
	Payload        json.RawMessage
	Meta           map[string]string // nil for none
	Status         Status
	RunAt          time.Time  // not before; the database's clock
	Attempts       int        // used, the running one included
	MaxAttempts    int        //
	Runs           int        // claims so far; never lowered, so it numbers every run
	IdempotencyKey string     // "" for none
	LockedBy       string     // the worker that has it, or the last that had it
	LockedUntil    *time.Time // end of the lease; nil unless running
	StartedAt      *time.Time // of the last attempt; nil while it was only claimed ahead
	FinishedAt     *time.Time // nil until it has ended
	LastError      string     // the latest, or the reason of a cancel; a success leaves it; at most 4,000 characters
	History        []Attempt  // the last 20 at most; none after a success at the first try
	Slot           time.Time  // the slot of a schedule, in the schedule's zone, or in UTC where that is unknown; zero otherwise
	CreatedAt      time.Time
	UpdatedAt      time.Time // last change of Status
	// Fence is a fencing token for other systems: a random number that no other
	// claim of any job has. It is 0 unless the job is running.
	Fence int64

	crashes  int
	setbacks int
	attempt  *attempt // the attempt that this Job was handed to, if any
}

// An Attempt is an entry of a job's history.
type Attempt struct {
	Attempt   int       `json:"attempt"`    // which of MaxAttempts
	Run       int       `json:"run"`        // Job.Runs at the time
	StartedAt time.Time `json:"started_at"` // zero if it was only claimed
	EndedAt   time.Time `json:"ended_at"`
	Worker    string    `json:"worker"`
	Outcome   string    `json:"outcome"` // "succeeded", "failed", "dead", "snoozed", "cancelled", "setback", "released", "crashed", "broken"
	Error     string    `json:"error"`   // at most 500 characters
}

// jobColumns are read by readJob, in this order.
const jobColumns = `j.id, j.fence, j.task, j.lane, j.payload, j.meta, j.status, j.run_at, j.attempts, j.max_attempts, j.runs,
 j.crashes, j.setbacks, j.idempotency_key, j.locked_by, j.locked_until, j.started_at, j.finished_at, j.last_error,
 j.history, j.slot, j.slot_zone, j.created_at, j.updated_at`

// readJob reads the current row into j. It leaves rows usable when it fails. A handler would
// take a slot in UTC for one in its schedule's zone, so it fails for a zone that this host
// doesn't know. intern maps names that come again and again to one string.
func readJob(rows pgx.Rows, j *Job, intern map[string]string) error {
	return readJobAt(rows, 0, j, intern)
}

// viewJob is readJob for who only looks, in a row in which other columns may come first: a slot
// of an unknown zone stays in UTC, so that its job can be seen, and hides no other.
func viewJob(rows pgx.Rows, first int, j *Job) error {
	if err := readJobAt(rows, first, j, nil); !errors.Is(err, errZone) {
		return err
	}
	return nil
}

// errZone is what fails last: all else of the job has been read.
var errZone = errors.New("zone of the slot")

// readJobAt is readJob for a row in which other columns come first.
func readJobAt(rows pgx.Rows, first int, j *Job, intern map[string]string) error {
	r := rowReader{raw: rows.RawValues(), fields: rows.FieldDescriptions(), types: rows.Conn().TypeMap(), next: first}
	j.ID, j.Fence = r.int(), max(r.int(), 0) // below 0 the row keeps who has ended it
	j.Task, j.Lane = r.text(intern), r.text(intern)
	j.Payload = r.json()
	meta := r.json()
	j.Status, j.RunAt = Status(r.text(intern)), r.time()
	j.Attempts, j.MaxAttempts, j.Runs = int(r.int()), int(r.int()), int(r.int())
	j.crashes, j.setbacks = int(r.int()), int(r.int())
	j.IdempotencyKey, j.LockedBy = r.text(nil), r.text(intern)
	j.LockedUntil, j.StartedAt, j.FinishedAt = r.timePtr(), r.timePtr(), r.timePtr()
	j.LastError = r.text(nil)
	history := r.json()
	j.Slot = r.time()
	zone := r.text(intern)
	j.CreatedAt, j.UpdatedAt = r.time(), r.time()
	if r.err != nil {
		return fmt.Errorf("job %d: %w", j.ID, r.err)
	}
	return j.unpack(meta, history, zone)
}

// unpack decodes the columns that are seldom set.
func (j *Job) unpack(meta, history json.RawMessage, zone string) error {
	if meta != nil {
		if err := json.Unmarshal(meta, &j.Meta); err != nil {
			return fmt.Errorf("job %d: meta: %w", j.ID, err)
		}
	}
	if history != nil {
		if err := json.Unmarshal(history, &j.History); err != nil {
			return fmt.Errorf("job %d: history: %w", j.ID, err)
		}
	}
	if zone != "" && !j.Slot.IsZero() {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			return fmt.Errorf("job %d: %w: %w", j.ID, errZone, err)
		}
		j.Slot = j.Slot.In(loc)
	}
	return nil
}

// A rowReader takes the values of a row one after the other, in the binary or the
// text format (pgx uses the latter with QueryExecModeSimpleProtocol). After the
// first value that can't be read, err is set.
type rowReader struct {
	raw    [][]byte
	fields []pgconn.FieldDescription
	types  *pgtype.Map
	next   int
	err    error
}

func (r *rowReader) value() (raw []byte, binary bool, oid uint32) {
	i := r.next
	r.next++
	return r.raw[i], r.fields[i].Format == pgx.BinaryFormatCode, r.fields[i].DataTypeOID
}

func (r *rowReader) fail(err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("column %s: %w", r.fields[r.next-1].Name, err)
	}
}

// int reads a smallint, integer or bigint; null is 0.
func (r *rowReader) int() int64 {
	raw, bin, _ := r.value()
	switch {
	case raw == nil:
		return 0
	case !bin:
		n, err := strconv.ParseInt(string(raw), 10, 64)
		r.fail(err)
		return n
	case len(raw) == 8:
		return int64(binary.BigEndian.Uint64(raw))
	case len(raw) == 4:
		return int64(int32(binary.BigEndian.Uint32(raw)))
	case len(raw) == 2:
		return int64(int16(binary.BigEndian.Uint16(raw)))
	}
	r.fail(fmt.Errorf("integer of %d bytes", len(raw)))
	return 0
}

// text reads a text; null is "".
func (r *rowReader) text(intern map[string]string) string {
	raw, _, _ := r.value()
	if s, ok := intern[string(raw)]; ok {
		return s
	}
	return string(raw)
}

// json reads a jsonb into memory of its own; null is nil.
func (r *rowReader) json() json.RawMessage {
	raw, bin, _ := r.value()
	if raw == nil {
		return nil
	}
	if bin {
		if len(raw) == 0 || raw[0] != 1 {
			r.fail(errors.New("jsonb of an unknown version"))
			return nil
		}
		raw = raw[1:]
	}
	return append(json.RawMessage(nil), raw...)
}

// The microseconds from Unix's epoch to PostgreSQL's, 2000-01-01.
const pgEpoch = 946684800 * 1000000

// time reads a timestamptz in UTC; null is the zero Time.
func (r *rowReader) time() time.Time {
	raw, bin, oid := r.value()
	switch {
	case raw == nil:
		return time.Time{}
	case !bin:
		var t time.Time
		r.fail(r.types.Scan(oid, pgx.TextFormatCode, raw, &t))
		return t.UTC()
	case len(raw) != 8:
		r.fail(fmt.Errorf("timestamp of %d bytes", len(raw)))
		return time.Time{}
	}
	us := int64(binary.BigEndian.Uint64(raw))
	if us == math.MaxInt64 || us == math.MinInt64 {
		r.fail(errors.New("an infinite time"))
		return time.Time{}
	}
	return time.UnixMicro(us + pgEpoch).UTC()
}

func (r *rowReader) timePtr() *time.Time {
	if r.raw[r.next] == nil {
		r.next++
		return nil
	}
	return new(r.time())
}

// bool reads a boolean; null is false.
func (r *rowReader) bool() bool {
	var b bool
	r.scan(&b)
	return b
}

// scan reads anything, for columns that are not on a hot path; null leaves dest alone.
func (r *rowReader) scan(dest any) {
	raw, _, oid := r.value()
	if raw != nil {
		r.fail(r.types.Scan(oid, r.fields[r.next-1].Format, raw, dest))
	}
}
