package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/rebasejobs/rebase/webhook"
)

func ExampleSign() {
	// Read it from your configuration; this one is the scheme's published example.
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		panic(err)
	}
	body := []byte(`{"test": 2432232314}`)
	h := http.Header{}
	if err := webhook.Sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), body, secret); err != nil {
		panic(err)
	}
	fmt.Println(h.Get(webhook.HeaderSignature))
	fmt.Println(secret)
	// Output:
	// v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=
	// ***
}

func ExampleVerifier_Middleware() {
	secret := webhook.NewSecret()
	v := &webhook.Verifier{Secrets: []webhook.Secret{secret}}
	receiver := v.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		delivery, _ := webhook.FromContext(r.Context())
		fmt.Printf("delivery %s: %s\n", delivery.ID, delivery.Body)
	}))

	body := `{"type":"invoice.paid"}`
	for _, sent := range []string{body, strings.ToUpper(body)} {
		r := httptest.NewRequest(http.MethodPost, "/hooks", strings.NewReader(sent))
		if err := webhook.Sign(r.Header, "42", time.Now(), []byte(body), secret); err != nil {
			panic(err)
		}
		w := httptest.NewRecorder()
		receiver.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// delivery 42: {"type":"invoice.paid"}
	// 200
	// 401
}

func ExampleOutcome() {
	client := webhook.NewClient(nil)
	req, err := http.NewRequest(http.MethodPost, "http://169.254.169.254/latest/meta-data", http.NoBody)
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
	}
	fmt.Println(webhook.Outcome(req.Context(), resp, err))
	// Output:
	// webhook: blocked: link-local
}
