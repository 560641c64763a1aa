package main

// The customers: HTTP servers of other people's. Those that receive verify each request by
// the middleware, and keep the ids of what they have handled: in a real service in a table,
// in the transaction of the effect.

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rebasejobs/rebase/webhook"
)

type customer struct {
	name   string
	url    string
	secret webhook.Secret

	mu      sync.Mutex
	handled map[string]bool // by the delivery's id
	dropped int             // duplicates
}

type customers struct {
	all            []*customer
	books, flowers *customer
	down           atomic.Bool  // flowers is
	prefix         netip.Prefix // where those are that have a server
	servers        []*httptest.Server
}

func openCustomers() (*customers, error) {
	cs := &customers{books: newCustomer("books"), flowers: newCustomer("flowers")}
	cs.down.Store(true)
	moved, inside := newCustomer("moved"), newCustomer("inside")
	redirect := http.RedirectHandler("http://169.254.169.254/latest/meta-data/", http.StatusFound)
	err := cmp.Or(
		cs.serve(cs.books, cs.books.receiver(true)),
		cs.serve(cs.flowers, cs.door(cs.flowers.receiver(false))),
		cs.serve(moved, redirect),
	)
	if err != nil {
		cs.close()
		return nil, err
	}
	inside.url = "http://127.0.0.1:5432/"
	cs.all = append(cs.all, inside)
	return cs, nil
}

func newCustomer(name string) *customer {
	return &customer{name: name, secret: webhook.NewSecret(), handled: map[string]bool{}}
}

// serve starts a server, not at 127.0.0.1, which is to be refused: at 127.0.0.2 or, where
// there is no such address, at ::1.
func (cs *customers) serve(c *customer, h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		second, err6 := net.Listen("tcp", "[::1]:0")
		if err6 != nil {
			return errors.Join(err, err6)
		}
		l = second
	}
	addr := netip.MustParseAddrPort(l.Addr().String()).Addr()
	cs.prefix = netip.PrefixFrom(addr, addr.BitLen())
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	server.Start()
	c.url = server.URL + "/hooks"
	cs.servers, cs.all = append(cs.servers, server), append(cs.all, c)
	return nil
}

func (cs *customers) close() {
	for _, s := range cs.servers {
		s.Close()
	}
}

// door answers 503 while flowers is down.
func (cs *customers) door(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cs.down.Load() {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// receiver is the handler that a customer writes. dies makes it fail after it has handled an
// event for the first time, as if the process had died before its answer.
func (c *customer) receiver(dies bool) http.Handler {
	v := &webhook.Verifier{Secrets: []webhook.Secret{c.secret}}
	return v.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		delivery, _ := webhook.FromContext(r.Context())
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.handled[delivery.ID] {
			c.dropped++
			return // 200: it is done
		}
		c.handled[delivery.ID] = true // and the event's effect, in the same transaction
		if dies {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
}

func (c *customer) counts() (handled, dropped int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.handled), c.dropped
}
