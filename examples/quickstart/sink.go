package main

import (
	"errors"
	"io"
	"net"
	"net/mail"
	"net/textproto"
	"strings"
	"sync"
)

// A mail server small enough to read: it speaks as much of SMTP (RFC 5321) as net/smtp
// needs and keeps nothing but a count. It knows three kinds of mailboxes, by domain:
// gone.example refuses for good, busy.example asks twice to come back later, and
// everything else takes mail.

type sink struct {
	listener net.Listener
	say      teller
	sessions sync.WaitGroup

	mu    sync.Mutex // guards what follows
	tries map[string]int
	taken int
	conns map[net.Conn]struct{} // open ones; nil once closed
}

// startSink listens on a free port of this machine.
func startSink(say teller) (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{listener: l, say: say, tries: map[string]int{}, conns: map[net.Conn]struct{}{}}
	s.sessions.Go(s.accept)
	return s, nil
}

func (s *sink) Addr() string { return s.listener.Addr().String() }

// Taken is how many mails were accepted.
func (s *sink) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Close ends the sessions and waits for them.
func (s *sink) Close() error {
	err := s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.sessions.Wait()
	return err
}

func (s *sink) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.say("mail server: %v", err)
			return
		}
		if !s.admit(conn) {
			conn.Close()
			return
		}
		s.sessions.Go(func() {
			defer s.dismiss(conn)
			s.serve(textproto.NewConn(conn))
		})
	}
}

// admit reports false when the sink is being closed.
func (s *sink) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *sink) dismiss(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	conn.Close()
}

// serve answers commands until the client leaves.
func (s *sink) serve(c *textproto.Conn) {
	err := c.PrintfLine("220 sink ready")
	for err == nil {
		var line string
		if line, err = c.ReadLine(); err != nil {
			break
		}
		verb, rest, _ := strings.Cut(line, " ")
		switch strings.ToUpper(verb) {
		case "EHLO", "HELO":
			err = c.PrintfLine("250-sink\r\n250 8BITMIME")
		case "MAIL", "RSET", "NOOP":
			err = c.PrintfLine("250 fine")
		case "RCPT":
			err = c.PrintfLine("%s", s.recipient(rest))
		case "DATA":
			err = s.data(c)
		case "QUIT":
			_ = c.PrintfLine("221 goodbye") // it has left already, perhaps
			return
		default:
			err = c.PrintfLine("502 not here")
		}
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.say("mail server: %v", err)
	}
}

// recipient answers RCPT TO:<address>.
func (s *sink) recipient(rest string) string {
	address := strings.TrimSuffix(strings.TrimPrefix(rest, "TO:<"), ">")
	_, domain, _ := strings.Cut(address, "@")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries[address]++
	switch {
	case domain == "gone.example":
		return "550 5.1.1 nobody of that name here"
	case domain == "busy.example" && s.tries[address] <= 2:
		return "451 4.3.0 busy, please come back"
	}
	return "250 fine"
}

// data takes the mail itself. One that can't be parsed is refused, so that the example
// would notice if it wrote nonsense.
func (s *sink) data(c *textproto.Conn) error {
	if err := c.PrintfLine("354 go ahead"); err != nil {
		return err
	}
	text := c.DotReader()
	_, err := mail.ReadMessage(text)
	if _, drainErr := io.Copy(io.Discard, text); drainErr != nil {
		return drainErr
	}
	if err != nil {
		return c.PrintfLine("554 5.6.0 not a mail: %v", err)
	}
	s.mu.Lock()
	s.taken++
	s.mu.Unlock()
	return c.PrintfLine("250 taken")
}
