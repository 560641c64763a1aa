// The service is built and run as a process, as it would be in production: against a server
// that comes late, under load, and until SIGTERM. What it has promised by a 201 is then in
// the table, and its exit code says that it ended well.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/internal/pgserver"
	"github.com/rebasejobs/rebase/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// soonEnough bounds every wait for something that must happen; the machine may be slow.
const soonEnough = 30 * time.Second

// A process is the service, running.
type process struct {
	*testing.T
	cmd    *exec.Cmd
	base   string // of its URLs
	client *http.Client
	ended  chan error
}

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "service")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// start returns when the service listens.
func start(t *testing.T, binary, database string) *process {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "ADDR=127.0.0.1:0")
	logs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{T: t, cmd: cmd, ended: make(chan error, 1)}
	p.client = &http.Client{Timeout: soonEnough, Transport: &http.Transport{MaxIdleConnsPerHost: 16, ExpectContinueTimeout: soonEnough}}
	t.Cleanup(p.client.CloseIdleConnections)
	addr := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(logs); lines.Scan(); {
			if _, rest, found := strings.Cut(lines.Text(), "service started addr="); found {
				addr <- rest
			}
			fmt.Fprintln(t.Output(), lines.Text())
		}
		p.ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		if cmd.Process.Kill() == nil { // else it has ended already
			<-p.ended
		}
	})
	select {
	case a := <-addr:
		p.base = "http://" + a
	case err := <-p.ended:
		require.FailNow(t, "it ended", "%v", err)
	case <-time.After(soonEnough):
		require.FailNow(t, "it does not listen")
	}
	return p
}

// get returns the status and the body.
func (p *process) get(path string) (int, string) {
	p.Helper()
	answer, err := p.client.Get(p.base + path)
	require.NoError(p, err)
	return read(p.T, answer)
}

func read(t *testing.T, answer *http.Response) (int, string) {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode, string(body)
}

func (p *process) signUp(email string) int {
	p.Helper()
	answer, err := p.client.PostForm(p.base+"/signup", url.Values{"email": {email}})
	require.NoError(p, err)
	code, _ := read(p.T, answer)
	return code
}

// terminate sends SIGTERM and waits for a clean end.
func (p *process) terminate() {
	p.Helper()
	require.NoError(p, p.cmd.Process.Signal(syscall.SIGTERM))
	p.exits()
}

func (p *process) exits() {
	p.Helper()
	select {
	case err := <-p.ended:
		require.NoError(p, err, "the exit code is 0")
	case <-time.After(soonEnough):
		require.FailNow(p, "it does not end")
	}
}

// metric is the value of a series; 0 if it is absent.
func (p *process) metric(series string) int {
	p.Helper()
	code, body := p.get("/metrics")
	require.Equal(p, http.StatusOK, code)
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(body)
	if found == nil {
		return 0
	}
	v, err := strconv.ParseFloat(found[1], 64)
	require.NoError(p, err)
	return int(v)
}

// load signs up to n people up, from eight clients, until the service no longer answers. The
// function that it returns waits for their end and returns how many were told 201.
func (p *process) load(n int64) func() int64 {
	var begun, promised atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for begun.Add(1) <= n {
				email := fmt.Sprintf("%s@example.org", strings.ToLower(rand.Text()))
				answer, err := p.client.PostForm(p.base+"/signup", url.Values{"email": {email}})
				if err != nil {
					return
				}
				if code, _ := read(p.T, answer); code == http.StatusCreated {
					promised.Add(1)
				}
			}
		})
	}
	return func() int64 {
		clients.Wait()
		return promised.Load()
	}
}

func until(t *testing.T, ok func() bool, what string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(soonEnough); !ok(); <-tick.C {
		require.True(t, time.Now().Before(deadline), "waited in vain until "+what)
	}
}

func count(t *testing.T, database, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

const succeeded = `rebase_jobs_succeeded_total{task="send-welcome"}`

// N5, J15, M1, M2, J2: a database that is away at the start is waited for, the counters count
// under load, and a SIGTERM in the middle of it loses no job.
func TestServiceOutlivesAnAbsentDatabaseAndEndsWithoutLosingAJob(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Config{})
	database := server.URL("postgres")
	require.NoError(t, server.Stop("fast"))
	binary := build(t)
	p := start(t, binary, database)

	code, body := p.get("/livez")
	require.Equal(t, http.StatusOK, code, body)
	code, body = p.get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "rebase: ")
	require.Equal(t, http.StatusServiceUnavailable, p.signUp("early@example.org"))
	require.Zero(t, p.metric("rebase_up"))

	require.NoError(t, server.Restart("fast"))
	until(t, func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK }, "it is ready")
	code, _ = p.get("/healthz")
	require.Equal(t, http.StatusOK, code)
	code, _ = p.get("/livez")
	require.Equal(t, http.StatusOK, code)

	require.Equal(t, http.StatusCreated, p.signUp("ada@example.org"))
	require.Equal(t, http.StatusConflict, p.signUp("ada@example.org"))
	require.Equal(t, http.StatusBadRequest, p.signUp("nobody"))
	until(t, func() bool { return p.metric(succeeded) == 1 }, "the mail is sent")
	until(t, func() bool { return p.metric("rebase_up") == 1 }, "the queue can be asked")

	loaded := p.load(200)
	until(t, func() bool { return p.metric(succeeded) == 1+200 }, "the counter shows all mails")
	require.EqualValues(t, 200, loaded())

	promised := p.load(100_000)
	until(t, func() bool { return p.metric(succeeded) > 300 }, "there is load")
	p.terminate()
	users := count(t, database, "select count(*) from rebase_service.users")
	require.EqualValues(t, users, 1+200+promised(), "a user for each 201")
	require.Equal(t, users, count(t, database, "select count(*) from rebase.jobs"), "and a job for each user")
	require.Zero(t, count(t, database, "select count(*) from rebase.jobs where status not in ('pending', 'succeeded')"), "none is held by the dead")

	again := start(t, binary, database)
	until(t, func() bool {
		return count(t, database, "select count(*) from rebase.jobs where status = 'succeeded'") == users
	}, "the next process has done the rest")
	again.terminate()
	require.Zero(t, count(t, database, "select count(*) from rebase.jobs where attempts <> 1"), "and no attempt was wasted")
}

// J15: on SIGTERM nothing new is let in; then the requests under way end, while the worker
// works and the pool is open; then the worker ends, then the process.
func TestRequestsUnderWayAreAnsweredBeforeTheWorkerAndThePoolEnd(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	p := start(t, build(t), pgtest.URL(t, pool))
	until(t, func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK }, "it is ready")

	body, answer := p.openRequest()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	until(t, func() bool { _, err := http.Get(p.base + "/livez"); return err != nil }, "nothing new is let in")
	done, err := SendWelcome.Enqueue(t.Context(), rebase.New(pool, nil), Welcome{"job@example.org"}, nil)
	require.NoError(t, err)
	handled := fmt.Sprintf("select count(*) from rebase.jobs where id = %d and status = 'succeeded'", done.ID)
	until(t, func() bool { return count(t, pgtest.URL(t, pool), handled) == 1 }, "the worker has handled a job")

	_, err = io.WriteString(body, "email=slow@example.org")
	require.NoError(t, err)
	require.NoError(t, body.Close())
	require.Equal(t, http.StatusCreated, <-answer, "which takes the pool")
	p.exits()
	require.Equal(t, 2, count(t, pgtest.URL(t, pool), "select count(*) from rebase.jobs where status in ('pending', 'succeeded')"))
}

// openRequest begins a sign-up and returns when the service waits for its body.
func (p *process) openRequest() (body io.WriteCloser, answer <-chan int) {
	p.Helper()
	source, body := io.Pipe()
	waits, code := make(chan struct{}), make(chan int, 1)
	ctx := httptrace.WithClientTrace(p.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(waits) }})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+"/signup", source)
	require.NoError(p, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Expect", "100-continue")
	go func() {
		defer close(code)
		if answer, err := p.client.Do(request); err == nil {
			code <- answer.StatusCode
			_ = answer.Body.Close() // nobody reads it
		}
	}()
	select {
	case <-waits:
	case <-time.After(soonEnough):
		require.FailNow(p, "the service does not ask for the body")
	}
	return body, code
}
