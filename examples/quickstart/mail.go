package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/smtp"
	"net/textproto"

	"github.com/rebasejobs/rebase"
)

// The handler: it sends one mail and says what the answer means for the job.

// welcomer returns the handler of SendWelcome.
func welcomer(smtpAddr string, say teller) func(context.Context, *rebase.Job, Welcome) error {
	return func(ctx context.Context, job *rebase.Job, p Welcome) error {
		err := sendMail(ctx, smtpAddr, p.Email, welcomeMail(job, p))
		if answer, ok := errors.AsType[*textproto.Error](err); ok && answer.Code >= 500 {
			say("job %d, attempt %d: %v: for good", job.ID, job.Attempts, err)
			return rebase.Permanent(err) // it won't get better: no further attempt
		}
		if err != nil {
			say("job %d, attempt %d: %v: again later", job.ID, job.Attempts, err)
			return err // an ordinary failure: tried again after the backoff
		}
		say("job %d, attempt %d: mail sent to %s", job.ID, job.Attempts, p.Email)
		return nil
	}
}

// welcomeMail writes the mail. Its Message-ID comes from the job's id, which is the same
// over all attempts: should the process die between sending and recording, the second
// copy can be told from a second mail.
func welcomeMail(job *rebase.Job, p Welcome) []byte {
	to := mail.Address{Name: p.Name, Address: p.Email} // String encodes what isn't ASCII
	var b bytes.Buffer
	fmt.Fprintf(&b, "From: Quickstart <hello@quickstart.example>\r\nTo: %s\r\nSubject: Welcome\r\n", to.String())
	fmt.Fprintf(&b, "Message-ID: <welcome-%d@quickstart.example>\r\n", job.ID)
	fmt.Fprintf(&b, "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n")
	fmt.Fprintf(&b, "Hello %s,\r\n\r\nyou are user number %d. Welcome!\r\n", p.Name, p.UserID)
	return b.Bytes()
}

// sendMail is smtp.SendMail, except that it ends with the job's context.
func sendMail(ctx context.Context, addr, to string, text []byte) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	host, _, _ := net.SplitHostPort(addr) // it has just been dialled
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer c.Close()
	if err := c.Mail("hello@quickstart.example"); err != nil {
		return err
	}
	if err := c.Rcpt(to); err != nil {
		return err
	}
	body, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := body.Write(text); err != nil {
		return err
	}
	if err := body.Close(); err != nil { // only now the server has said that it has the mail
		return err
	}
	// The mail is delivered, whatever becomes of the goodbye.
	_ = c.Quit()
	return nil
}
