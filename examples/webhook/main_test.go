// The program is run as it is, on a database of the test's own.
package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// H1–H3, J2: the order that was rolled back is told to nobody; each customer gets what it
// deserves, and the rows say why.
func TestEachCustomerGetsWhatItDeserves(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, pgtest.URL(t, pool), &out, pgtest.Logger(t)))
	t.Log(out.String())
	for _, line := range []string{
		`order 1 was rolled back`, `order 2 is paid: 4 deliveries`,
		`books +succeeded attempts: 2`, `books handled 1 event and dropped 1`,
		`flowers +succeeded attempts: [45] `, `flowers handled 1 event and dropped 0`,
		`moved +failed +attempts: 1  last error: webhook: redirect 302`,
		`inside +failed +attempts: 1  last error: webhook: blocked: loopback`,
	} {
		require.Regexp(t, line, out.String())
	}
	var jobs, orders int
	require.NoError(t, pool.QueryRow(t.Context(), `
		select (select count(*) from rebase.jobs), (select count(*) from rebase_webhook_example.orders)`).Scan(&jobs, &orders))
	require.Equal(t, 4, jobs)
	require.Equal(t, 1, orders)
}
