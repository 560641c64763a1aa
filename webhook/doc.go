// Package webhook sends events to other people's HTTP endpoints and checks
// those that arrive. A customer's URL is hostile input: it may name the
// cloud's metadata service, answer with an endless body, or redirect into the
// private network. The package assumes so.
//
// # Guarantees
//
//  1. A delivery is signed by the Standard Webhooks scheme: webhook-id,
//     webhook-timestamp and webhook-signature, with one signature for each
//     secret of the [Endpoint], newest first.
//  2. [Verifier] checks the raw bytes of the body, in constant time, against
//     any number of secrets, and refuses a timestamp that is too old or too
//     new. It examines ten signatures at most.
//  3. The client of [NewClient] connects to public addresses only. The decision
//     falls on the address that the socket will use, so a name that changes
//     its answer between the check and the connection gains nothing.
//  4. That client follows no redirect, uses no proxy, and bounds everything
//     that an endpoint controls: one deadline for the whole request, 64 KiB of
//     headers, 64 KiB of body, a few connections a host.
//  5. A [Secret] prints as *** whatever prints it. A [DeliveryError] says what
//     went wrong in a few fixed words, so neither the path nor the query of a
//     URL, nor a header or a body, reaches a log or a database.
//
// # Sending
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
//	req.Header = endpoint.Header.Clone()
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
