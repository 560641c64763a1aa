package main

// What each thing costs: the ceiling without one at a time, without all of them, and the bare
// prototype, which never had them. None of these is a queue to be used: each lacks something that
// a promise rests on.

import (
	"context"
	"errors"
	"strings"
)

var price = &scenario{
	name:    "price",
	about:   "100,000 no-op jobs by the ceiling, without one thing at a time, and by the bare prototypes",
	asks:    "What does each thing cost that the bare prototype does without?",
	systems: append([]*system{ceilingSystem, bareSystem, bareDeleteSystem}, lackingSystems...),
	warm:    true,
	run:     drain.run,
}

// A lack is what is taken from the ceiling.
type lack struct {
	schema string // run after the migration
	claim  func(sql string) (less string, runAt int)
	result func(sql string) string
}

var (
	noCheck     = lack{schema: "alter table rebase.jobs drop constraint jobs_status"}
	noRetention = lack{schema: "drop index rebase.jobs_finished_at"}
	noRowLock   = lack{result: func(sql string) string { return strings.Replace(sql, "for no key update skip locked", "", 1) }}
	fewColumns  = lack{claim: func(sql string) (string, int) {
		before, rest, _ := strings.Cut(sql, "returning ")
		_, after, _ := strings.Cut(rest, "\n), ledger")
		return before + "returning j.id, j.run_at, j.payload\n), ledger" + after, 1
	}}
	noneOfThem = lack{schema: noCheck.schema + "; " + noRetention.schema, claim: fewColumns.claim, result: noRowLock.result}
)

var lackingSystems = []*system{
	lacking("nocheck", "the ceiling without the check of status", noCheck),
	lacking("noretention", "the ceiling without the index that retention reads", noRetention),
	lacking("norowlock", "the ceiling, but results wait for rows that others have locked", noRowLock),
	lacking("fewcolumns", "the ceiling, but a claim returns three columns", fewColumns),
	lacking("without", "the ceiling without all four", noneOfThem),
}

func lacking(name, about string, l lack) *system {
	return &system{name: name, about: about, open: func(ctx context.Context, url string, conns int) (client, error) {
		c, err := openRebase(ctx, url, conns)
		return &ceilingClient{rebaseClient: c, lack: l}, err
	}}
}

func (c *ceilingClient) migrate(ctx context.Context) error {
	err := c.rebaseClient.migrate(ctx)
	if err == nil && c.lack.schema != "" {
		_, err = c.pool.Exec(ctx, c.lack.schema)
	}
	return err
}

// statements are the ceiling's, less what is lacking.
func (c *ceilingClient) statements() (claim string, runAt int, result string, err error) {
	claim, runAt, result = claimSQL, 7, succeedSQL
	if c.lack.claim != nil {
		claim, runAt = c.lack.claim(claim)
	}
	if c.lack.result != nil {
		result = c.lack.result(result)
	}
	if c.lack.claim != nil && claim == claimSQL || c.lack.result != nil && result == succeedSQL {
		err = errors.New("what was to be left out is not in the statement")
	}
	return claim, runAt, result, err
}
