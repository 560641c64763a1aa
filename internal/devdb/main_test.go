// Without an engine the error must say so; with one the address must work and
// the end of the input must end the container.
package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestNoEngineIsSaidInPlainWords(t *testing.T) {
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	in, hold := io.Pipe()
	defer hold.Close()
	var out bytes.Buffer
	err := run(t.Context(), in, &out)
	if err == nil || !strings.Contains(err.Error(), "Is a Docker engine running?") {
		t.Fatalf("got %v", err)
	}
	if out.Len() != 0 {
		t.Fatalf("an address was printed: %s", &out)
	}
}

func TestContainerAnswersAndEndsWithItsInput(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "docker", "info").CombinedOutput(); err != nil {
		t.Skipf("no Docker engine: %v %s", err, out)
	}
	in, hold := io.Pipe()
	stdout, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), in, out)
		out.Close()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err, <-ended)
	}
	address, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address.Host)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	hold.Close()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the container goes on")
	}
}
