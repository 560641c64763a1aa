// Package webhook sends events to other people's HTTP endpoints, durably, and
// checks those that arrive. A customer's URL is hostile input: it may name the
// cloud's metadata service, answer with an endless body, or redirect into the
// private network. The package assumes so.
//
// # Guarantees
//
//  1. A delivery is a job of package rebase: it exists if and only if the
//     transaction that it was sent in commits, and it arrives at least once or
//     ends as a row that says why not. The row holds the endpoint's id, the
//     event and the body; never a URL, a header or a secret.
//  2. Every attempt of a delivery sends the same X-Webhook-Delivery and the same
//     bytes, over retries, crashes and redeliveries; X-Webhook-Attempt grows.
//  3. A delivery is signed by the Standard Webhooks scheme: webhook-id,
//     webhook-timestamp and webhook-signature, with one signature for each
//     secret of the [Endpoint], newest first. Endpoint and secrets are those
//     that the [Store] has at the time of the attempt.
//  4. [Verifier] checks the raw bytes of the body, in constant time, against
//     any number of secrets, and refuses a timestamp that is too old or too
//     new. It examines ten signatures at most.
//  5. The client of [NewClient] connects to public addresses only. The decision
//     falls on the address that the socket will use, so a name that changes
//     its answer between the check and the connection gains nothing.
//  6. That client follows no redirect, uses no proxy, and bounds everything
//     that an endpoint controls: one deadline for the whole request, 64 KiB of
//     headers, 64 KiB of body.
//  7. One endpoint has a few deliveries under way at most, over all processes:
//     a dead one holds up nobody but itself, not even others at its host.
//  8. A [Secret] prints as *** whatever prints it. A [DeliveryError] says what
//     went wrong in a few fixed words, so neither the path nor the query of a
//     URL, nor a header or a body, reaches a log or a database.
//
// Not promised: order between deliveries, and that one arrives only once. A
// receiver drops the ids that it has handled.
//
// # Sending
//
//	store := webhook.NewPGStore(pool, sealer) // or a Store of yours, or Static
//	dispatcher := webhook.New(queue, store, nil)
//	dispatcher.Register(worker)
//	…
//	_, err = dispatcher.Send(ctx, tx, webhook.Delivery{Endpoint: "crm", Event: "order.paid", Body: body})
//
// Refused for good after one attempt, with the reason in the job's last_error:
// an address that is not public, a redirect, an endpoint that can't be used.
// Cancelled at once: an endpoint that is gone or disabled ([ErrNotFound],
// [ErrDisabled]). Everything else is tried again, eight times in three days;
// Retry-After is a floor of the delay.
//
// An endpoint's URL and headers may hold tokens as much as its secrets do.
// [PGStore] seals them all; its table shows the scheme and the host.
//
// # Sending without a queue
//
// Validate the [Endpoint], sign with [Sign], send with the client of
// [NewClient], and let [Outcome] say whether the attempt succeeded and whether
// another one makes sense:
//
//	client := webhook.NewClient(nil) // one for all endpoints
//	if err := endpoint.Validate(); err != nil {
//		return err // *EndpointError
//	}
//	req, err := http.NewRequestWithContext(ctx, "POST", endpoint.URL, bytes.NewReader(body))
//	…
//	req.Header = endpoint.Header.Clone() // not nil here
//	err = webhook.Sign(req.Header, id, time.Now(), body, endpoint.Secrets...)
//	…
//	resp, err := client.Do(req)
//	return webhook.Outcome(ctx, resp, err) // nil, or *DeliveryError
//
// The id stays the same over all attempts, so that the receiver can drop what
// it has seen; the timestamp is that of the attempt.
//
// # Rotating a secret
//
// Put the new secret first and keep the old one behind it until every receiver
// knows the new one: each delivery then carries both signatures. Then remove
// the old one. Deliveries that were waiting are signed with whatever secrets
// the endpoint has at the time of the attempt.
//
// # Receiving
//
//	v := &webhook.Verifier{Secrets: []webhook.Secret{secret}}
//	mux.Handle("POST /hooks", v.Middleware(handler))
//
// The handler reads the body as usual, or takes it with the id from
// [FromContext]. A delivery can arrive twice: keep the ids that you have
// handled, for as long as the sender retries.
package webhook
