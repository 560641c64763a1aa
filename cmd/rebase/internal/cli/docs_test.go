package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase"
	"github.com/rebasejobs/rebase/cmd/rebase/internal/cli"
	"github.com/rebasejobs/rebase/cmd/rebase/internal/termpic"
)

// docs/cli.md and the pictures beside it are made here, of what the commands print on a queue
// with workers that really run. `go test -run Documents -update ./internal/cli` writes them; a
// plain test makes them again and compares them without their numbers and times.

var update = flag.Bool("update", false, "write docs/cli.md and its pictures")

const docs = "../../../../docs"

// A shop is a queue with a bit of everything.
type shop struct {
	*desk
	Dead, Stuck, Running, Pending int64
}

func openShop(t *testing.T) *shop {
	s := &shop{desk: newDesk(t)}
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	once := func(context.Context, *rebase.Job) error { return nil }
	mail := rebase.NewWorker(s.q, &rebase.WorkerOptions{Name: "mail", Concurrency: 10, PollInterval: 200 * time.Millisecond,
		Backoff: func(int) time.Duration { return 25 * time.Minute }, ShutdownTimeout: time.Second})
	mail.Register("send-welcome", once, nil)
	mail.Register("newsletter", once, nil)
	mail.Register("send-invoice", func(_ context.Context, j *rebase.Job) error {
		return rebase.Permanent(fmt.Errorf("550 no such mailbox: order %s", j.Meta["order"]))
	}, nil)
	mail.Register("sync-crm", func(context.Context, *rebase.Job) error { return errors.New("503 the CRM is down for maintenance") }, nil)
	media := rebase.NewWorker(s.q, &rebase.WorkerOptions{Name: "media", Concurrency: 4, ShutdownTimeout: time.Second})
	media.Register("resize-image", func(ctx context.Context, _ *rebase.Job) error {
		select {
		case <-ctx.Done():
		case <-hold:
		}
		return ctx.Err()
	}, nil)

	for i := range 3 {
		payload := map[string]any{"order": 4711 + i, "to": "ada@example.org"}
		done, err := s.q.Enqueue(t.Context(), "send-invoice", payload, &rebase.EnqueueOptions{Lane: "acme", IdempotencyKey: fmt.Sprint("order-", 4711+i), Meta: map[string]string{"order": fmt.Sprint(4711 + i)}})
		require.NoError(t, err)
		s.Dead = done.ID
	}
	stuck, err := s.q.Enqueue(t.Context(), "sync-crm", map[string]any{"customer": 1815, "name": "Ada Lovelace"}, &rebase.EnqueueOptions{Lane: "acme", IdempotencyKey: "customer-1815"})
	require.NoError(t, err)
	s.Stuck = stuck.ID
	for range 4 { // as many as there are slots: what is claimed ahead would come and go
		s.Running = s.enqueue("resize-image", nil)
	}
	s.Pending = s.enqueue("nightly-report", nil)
	s.exec(`update rebase.jobs set run_at = now() - interval '23 minutes', created_at = now() - interval '23 minutes' where task = 'nightly-report'`)
	require.NoError(t, s.q.PauseTask(t.Context(), "newsletter"))
	for range 3 {
		s.enqueue("newsletter", nil)
	}
	for id, cron := range map[string]string{"cleanup": "30 3 * * *", "report": "0 6 * * 1-5"} {
		require.NoError(t, s.q.SetSchedule(t.Context(), rebase.Schedule{ID: id, Cron: cron, Zone: "Europe/Berlin", Task: "nightly-report"}))
	}
	require.NoError(t, s.q.PauseSchedule(t.Context(), "cleanup"))
	s.work(mail)
	s.work(media)
	s.until("the workers have seen all", func() bool {
		return s.count("dead") == 3 && s.count("task = 'sync-crm' and attempts = 1 and status = 'pending'") == 1 && s.count("task = 'resize-image' and started_at is not null") == 4
	})
	s.ended(1200, "send-welcome", rebase.StatusSucceeded, 48*time.Hour) // younger than what workers delete
	s.ended(40, "send-invoice", rebase.StatusCancelled, 48*time.Hour)
	return s
}

// traffic enqueues welcome mails until stop is called, some forty a second.
func (s *shop) traffic() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-tick.C:
				if _, err := s.q.Enqueue(s.t.Context(), "send-welcome", nil, nil); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	return func() {
		cancel()
		require.NoError(s.t, <-done)
	}
}

// pictures are files and the commands that they show, on a terminal.
func (s *shop) pictures() map[string]string {
	stop := s.traffic()
	defer stop()
	s.terminal = true
	defer func() { s.terminal = false }()
	files := map[string]string{}
	draw := func(file, line string, shown string) {
		svg, err := termpic.Render("rebase "+line, shown)
		require.NoError(s.t, err)
		files["cli/"+file] = svg
	}
	frames := strings.Split(s.ok("watch", "--count", "12", "--interval", "500ms"), "\x1b[H")
	draw("watch.svg", "watch", strings.NewReplacer("\x1b[K", "", "\x1b[J", "").Replace(frames[len(frames)-1]))
	draw("stats.svg", "stats", s.ok("stats"))
	show := fmt.Sprintf("show %d", s.Stuck)
	draw("show.svg", show, s.ok(strings.Fields(show)...))
	return files
}

// manual executes the template: {{run "list"}} is a command with its output, {{flags "list"}} its
// flags.
func (s *shop) manual() string {
	text, err := os.ReadFile("testdata/cli.md.tmpl")
	require.NoError(s.t, err)
	functions := template.FuncMap{
		"run":   func(line string, values ...any) string { return s.session(fmt.Sprintf(line, values...)) },
		"about": about,
	}
	tmpl, err := template.New("cli.md").Funcs(functions).Parse(string(text))
	require.NoError(s.t, err)
	var b bytes.Buffer
	require.NoError(s.t, tmpl.Execute(&b, s))
	return b.String()
}

// session shows a command line and what it printed.
func (s *shop) session(line string) string {
	args := regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1)
	for i := range args {
		args[i] = strings.Trim(args[i], "'")
	}
	r := s.run(args...)
	shown := "$ rebase " + line + "\n" + r.out + r.err
	if r.code != 0 {
		shown += fmt.Sprintf("$ echo $?\n%d\n", r.code)
	}
	return "```console\n" + shown + "```"
}

// about is what a command says about itself.
func about(path string) (string, error) {
	cmd, rest, err := cli.Root().Find(strings.Fields(path))
	if err != nil || len(rest) > 0 {
		return "", fmt.Errorf("there is no command %q", path)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n```\n%s\n", cmd.Long, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			kind, usage := pflag.UnquoteUsage(f)
			if !slices.Contains([]string{"", "0", "false", "[]"}, f.DefValue) {
				usage += " (default " + f.DefValue + ")"
			}
			fmt.Fprintf(&b, "  %-26s %s\n", strings.TrimSpace("--"+f.Name+" "+kind), usage)
		}
	})
	b.WriteString("```")
	return b.String(), nil
}

func TestDocumentsShowWhatTheCommandsPrint(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	files := s.pictures()
	files["cli.md"] = s.manual()
	for name, made := range files {
		path := filepath.Join(docs, name)
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(made), 0o644))
		}
		kept, err := os.ReadFile(path)
		require.NoError(t, err, "make it with -update")
		if filepath.Ext(name) == ".svg" {
			require.Equal(t, wordsOf(string(kept)), wordsOf(made), "%s is not what the command prints: make it with -update", name)
			continue
		}
		require.Equal(t, withoutNumbers(string(kept)), withoutNumbers(made), "%s is not what the commands print: make it with -update", name)
	}
}

// withoutNumbers is what stays the same from run to run. Welcome mails come and go.
func withoutNumbers(s string) string {
	for _, r := range []struct{ pattern, with string }{
		{`(mail|media)-[0-9a-z]{6,}`, `$1-W`},
		{`(?m)^((mail|media)-W +)\S+`, `$1 host`},
		{`(?m)^(send-welcome|\S+ task=send-welcome) .*\n`, ``},
		{`(?m)^(oldest snapshot|totals) .*`, `$1`},
		{`(\d[\d.,]*(ms|[smhdy])?)+`, `0`},
		{` +`, ` `},
	} {
		s = regexp.MustCompile(r.pattern).ReplaceAllString(s, r.with)
	}
	return s
}

// wordsOf are the words of a picture that don't come and go with the traffic or the host:
// neither the oldest snapshot nor the totals are always the same.
func wordsOf(svg string) []string {
	var words []string
	host, err := os.Hostname()
	fleeting := regexp.MustCompile(`^none$| begun since|claims \d`)
	for _, m := range regexp.MustCompile(`>([^<>\n]+)</text>`).FindAllStringSubmatch(svg, -1) {
		if fleeting.MatchString(m[1]) {
			continue
		}
		for word := range strings.FieldsSeq(withoutNumbers(m[1])) {
			if word != "send-welcome" && (err != nil || word != host) {
				words = append(words, strings.TrimPrefix(word, "&lt;"))
			}
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// Every command, every flag of it, every exit code and every field of its JSON is in the manual.
func TestManualNamesEveryCommandFlagAndField(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(docs, "cli.md"))
	require.NoError(t, err)
	text := string(raw)
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			require.Contains(t, text, "### "+sub.CommandPath()[len("rebase "):]+"\n")
			visit(sub)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.Contains(t, text, "--"+f.Name, cmd.CommandPath())
		})
	}
	visit(cli.Root())
	for _, code := range []int{0, 1, 2, 3, 4, 5, 6, 130} {
		require.Regexp(t, fmt.Sprintf(`(?m)^\| %d \|`, code), text)
	}
	d := newDesk(t)
	d.enqueue("t", nil)
	require.NoError(t, d.q.SetSchedule(t.Context(), rebase.Schedule{ID: "s", Cron: "@daily", Task: "t"}))
	for _, args := range everything {
		if args[0] == "retry" || args[0] == "delete" {
			continue // the fields of cancel
		}
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(d.ok(append(args, "--json")...)), &fields), args)
		for name := range fields {
			require.Contains(t, text, "`"+name+"`", args)
		}
	}
}

func TestManualLinksToFilesThatAreThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(docs, "cli.md"))
	require.NoError(t, err)
	links := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, links)
	for _, m := range links {
		require.FileExists(t, filepath.Join(docs, m[1]))
	}
}
