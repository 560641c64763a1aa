package main

// What PostgreSQL itself counts: statements by pg_stat_statements, records by pg_walinspect. And
// the tables made of it: everything is divided by the number of jobs.

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// A statementCost is of all calls of one statement.
type statementCost struct {
	Query    string
	Calls    int64
	Time     float64 // ms
	Buffers  int64   // pages touched
	WALBytes int64
}

// A recordCost is of all records of one kind in one table or index. Pages are the full images
// that come with the first change of a page after a checkpoint, a part of Bytes.
type recordCost struct {
	Kind, Relation string
	TOAST          bool // parts of large values, or their index
	Count          int64
	Bytes, Pages   int64
}

func (r recordCost) where() string {
	if r.TOAST {
		return "TOAST"
	}
	return r.Relation
}

func (db *database) position(ctx context.Context) (lsn string, err error) {
	err = db.admin.QueryRow(ctx, "select pg_current_wal_insert_lsn()::text").Scan(&lsn)
	return lsn, err
}

// statementCosts are those of this database; whether a drain has ended is the benchmark's question.
func (db *database) statementCosts(ctx context.Context) ([]statementCost, error) {
	rows, _ := db.admin.Query(ctx, `
select s.query, s.calls, s.total_exec_time as time,
  s.shared_blks_hit + s.shared_blks_read as buffers, s.wal_bytes::bigint as wal_bytes
from pg_stat_statements s
join pg_database d on d.oid = s.dbid
where d.datname = current_database()
and s.query not like '%pg_stat_statements%' and s.query not like 'select exists(%'
order by s.total_exec_time desc`) // CollectRows tells the error
	return pgx.CollectRows(rows, pgx.RowToStructByName[statementCost])
}

// recordCosts are of what was written since the position. All of it must have reached the disk
// to be read. Records that touch nothing of this database have no relation. COPY writes many
// rows with one record, whose description says how many.
func (db *database) recordCosts(ctx context.Context, from string) ([]recordCost, error) {
	until, err := db.position(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := db.admin.Exec(ctx, "select pg_switch_wal()"); err != nil {
		return nil, err
	}
	rows, _ := db.admin.Query(ctx, `
with r as (
  select resource_manager || '/' || replace(record_type, '+INIT', '') as kind,
    substring(block_ref from '^blkref #0: rel \d+/(\d+)/')::oid as db,
    substring(block_ref from '^blkref #0: rel \d+/\d+/(\d+)')::oid as node,
    case when record_type like 'MULTI_INSERT%'
      then coalesce(substring(description from 'ntuples: (\d+)'), substring(description from '(\d+) tuples'))::int
      else 1 end as count,
    record_length as bytes, fpi_length as pages
  from pg_get_wal_records_info($1::text::pg_lsn, $2::text::pg_lsn)
), n as (
  select kind, case when db = (select oid from pg_database where datname = current_database()) then node end as node,
    sum(count)::bigint as count, sum(bytes)::bigint as bytes, sum(pages)::bigint as pages
  from r
  group by 1, 2
)
select n.kind, coalesce(c.relname, '') as relation, coalesce(c.relnamespace = 'pg_toast'::regnamespace, false) as toast,
  n.count, n.bytes, n.pages
from n
left join pg_class c on c.relfilenode = n.node
order by n.count desc, n.kind, n.node`, from, until)
	return pgx.CollectRows(rows, pgx.RowToStructByName[recordCost])
}

// marks name rebase's statements by what only they have in them, and is no constant:
// pg_stat_statements makes parameters of those.
var marks = []struct{ text, name string }{
	{"as l (task, lane_limit)", "claim of a reaped job"},
	{"with nothing as (select)", "claim"},
	{"coalesce(j.started_at, now()", "results"},
	{"delete from rebase.claims", "claims that are over"},
	{"select pg_catalog.set_config(", "settings"},
}

// nameOf is what a statement is, or its first words.
func nameOf(query string) string {
	for _, m := range marks {
		if strings.Contains(query, m.text) {
			return m.name
		}
	}
	name := ""
	for word := range strings.FieldsSeq(query) {
		if len(name)+len(word) >= 60 {
			break
		}
		name += " " + word
	}
	return strings.TrimSpace(name)
}

// sum adds up what the records of some kinds say.
func (d *dissection) sum(of func(recordCost) int64, toast bool, kinds ...string) (total int64) {
	for _, r := range d.records {
		for _, kind := range kinds {
			if strings.HasPrefix(r.Kind, kind) && r.TOAST == toast {
				total += of(r)
			}
		}
	}
	return total
}

func count(r recordCost) int64 { return r.Count }

// summaryLines are the rows of the first table, each a figure of all jobs together.
var summaryLines = []struct {
	name, format string
	value        func(d *dissection) float64
}{
	{"CPU of the client, µs", "%.2f", func(d *dissection) float64 { return float64(d.client.Microseconds()) }},
	{"CPU of the server, µs", "%.2f", func(d *dissection) float64 { return float64(d.server.Microseconds()) }},
	{"statements", "%.4f", func(d *dissection) float64 {
		return d.statementSum(func(s statementCost) float64 { return float64(s.Calls) })
	}},
	{"buffers", "%.1f", func(d *dissection) float64 {
		return d.statementSum(func(s statementCost) float64 { return float64(s.Buffers) })
	}},
	{"row versions", "%.2f", func(d *dissection) float64 {
		return float64(d.sum(count, false, "Heap/INSERT", "Heap2/MULTI_INSERT", "Heap/UPDATE", "Heap/HOT_UPDATE"))
	}},
	{"of them HOT", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, false, "Heap/HOT_UPDATE")) }},
	{"rows deleted", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, false, "Heap/DELETE")) }},
	{"row locks", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, false, "Heap/LOCK", "Heap2/LOCK")) }},
	{"B-tree entries", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, false, btreeEntry...)) }},
	{"GIN list entries", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, false, "Gin/UPDATE_META_PAGE")) }},
	{"TOAST rows written", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, true, "Heap/INSERT", "Heap2/MULTI_INSERT")) }},
	{"TOAST rows deleted", "%.2f", func(d *dissection) float64 { return float64(d.sum(count, true, "Heap/DELETE")) }},
	{"WAL, bytes", "%.0f", func(d *dissection) float64 { return d.wal(func(r recordCost) int64 { return r.Bytes - r.Pages }) }},
	{"and full pages, bytes", "%.0f", func(d *dissection) float64 { return d.wal(func(r recordCost) int64 { return r.Pages }) }},
}

// btreeEntry are the records that put one into a leaf.
var btreeEntry = []string{"Btree/INSERT_LEAF", "Btree/INSERT_POST", "Btree/SPLIT"}

func (d *dissection) wal(of func(recordCost) int64) float64 {
	return float64(d.sum(of, false, "") + d.sum(of, true, ""))
}

func (d *dissection) statementSum(of func(statementCost) float64) (total float64) {
	for _, s := range d.statements {
		total += of(s)
	}
	return total
}

func (d *dissection) each(v float64) float64 { return v / float64(d.jobs) }

func writeAnatomy(out io.Writer, name string, all []*dissection) {
	fmt.Fprintf(out, "\n## %s, a job\n\n", name)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, d := range all {
		fmt.Fprintf(w, "\t%s", d.system)
	}
	for _, line := range summaryLines {
		fmt.Fprintf(w, "\n%s", line.name)
		for _, d := range all {
			fmt.Fprintf(w, "\t"+line.format, d.each(line.value(d)))
		}
	}
	fmt.Fprintln(w)
	_ = w.Flush()
	for _, d := range all {
		d.write(out)
	}
}

// write tells of each statement and of each kind of record, but for those that are rare.
func (d *dissection) write(out io.Writer) {
	fmt.Fprintf(out, "\n%s: %d jobs in %v\n", d.system, d.jobs, d.took.Round(time.Millisecond))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  statement\tcalls\tµs\tbuffers\tWAL bytes")
	all := d.statementSum(func(s statementCost) float64 { return s.Time })
	for _, s := range d.statements {
		if s.Time >= all/200 {
			fmt.Fprintf(w, "  %s\t%.4f\t%.2f\t%.2f\t%.0f\n", nameOf(s.Query), d.each(float64(s.Calls)), d.each(1000*s.Time),
				d.each(float64(s.Buffers)), d.each(float64(s.WALBytes)))
		}
	}
	fmt.Fprintln(w, "  WAL record\tcount\tbytes\tof full pages")
	for _, r := range d.records {
		if n := d.each(float64(r.Count)); n >= 0.01 {
			fmt.Fprintf(w, "  %s %s\t%.3f\t%.0f\t%.0f\n", r.Kind, r.where(), n, d.each(float64(r.Bytes)), d.each(float64(r.Pages)))
		}
	}
	_ = w.Flush()
}
