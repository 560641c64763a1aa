package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"
)

// What stands before and beside changes of many rows: the question, and the bar. Without a
// terminal there is nobody to ask, so the answer is no unless --yes was given.

// confirm asks. Only the whole word counts.
func (a *app) confirm(ctx context.Context, question string) error {
	if a.yes {
		return nil
	}
	if !a.InTTY {
		return &notConfirmedError{question + " Standard input is no terminal to ask on: pass --yes"}
	}
	if err := a.out.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(a.Err, "%s Type yes to go on: ", question)
	answer := make(chan string, 1)
	go func() { // it can't be interrupted; when ctx ends, so does the process
		line, _ := bufio.NewReader(a.In).ReadString('\n') // an end without a line is a no
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.Err)
		return context.Cause(ctx)
	case line := <-answer:
		if strings.TrimSpace(line) != "yes" {
			return &notConfirmedError{"nothing was changed"}
		}
		return nil
	}
}

// A bar shows on a terminal how far a long change has come.
type bar struct {
	a     *app
	last  time.Time
	drawn bool
}

// show draws at most ten times a second.
func (b *bar) show(done float64, text string) {
	if !b.a.ErrTTY || time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.last, b.drawn = time.Now(), true
	const width = 30
	full := int(min(max(done, 0), 1) * width)
	fmt.Fprintf(b.a.Err, "\r[%s%s] %3.0f %%  %s\x1b[K", strings.Repeat("=", full), strings.Repeat(" ", width-full), min(max(done, 0), 1)*100, text)
}

// clear takes the bar away, so that the result stands in its place.
func (b *bar) clear() {
	if b.drawn {
		fmt.Fprint(b.a.Err, "\r\x1b[K")
	}
}
