package webhook_test

// W14, and the promise that a Secret prints as *** everywhere.

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rebasejobs/rebase/webhook"
)

// secretOf is the text of a secret of n bytes.
func secretOf(n int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, n))
}

func TestW14ParseSecretTakes24To64Bytes(t *testing.T) {
	t.Parallel()
	for n := range 80 {
		s, err := webhook.ParseSecret(secretOf(n))
		if n >= 24 && n <= 64 {
			require.NoError(t, err, "%d bytes", n)
			require.Equal(t, secretOf(n), s.Reveal())
			require.False(t, s.IsZero())
			continue
		}
		e, ok := errors.AsType[*webhook.SecretError](err)
		require.True(t, ok, "%d bytes", n)
		require.Equal(t, fmt.Sprintf("has %d bytes, not 24 to 64", n), e.Reason)
		require.True(t, s.IsZero())
	}
}

func TestW14ParseSecretRefusesOtherForms(t *testing.T) {
	t.Parallel()
	good := secretOf(24)
	bare := strings.TrimPrefix(good, "whsec_")
	for text, reason := range map[string]string{
		"":                                 "is empty",
		"whsec_":                           "has 0 bytes, not 24 to 64",
		bare:                               "does not begin with whsec_",
		"WHSEC_" + bare:                    "does not begin with whsec_",
		"whsk_" + bare:                     "does not begin with whsec_", // the scheme's asymmetric keys
		" " + good:                         "does not begin with whsec_",
		good + " ":                         "is not base64 behind whsec_",
		good + "\n":                        "contains a line break",
		good + "=":                         "is not base64 behind whsec_",
		"whsec_" + good:                    "is not base64 behind whsec_",
		"whsec_***":                        "is not base64 behind whsec_",
		secretOf(25)[:36]:                  "is not base64 behind whsec_", // cut before its padding
		strings.ReplaceAll(good, "+", "-"): "is not base64 behind whsec_", // the URL alphabet
	} {
		_, err := webhook.ParseSecret(text)
		e, ok := errors.AsType[*webhook.SecretError](err)
		require.True(t, ok, "%q passed", text)
		require.Equal(t, reason, e.Reason, "%q", text)
		require.EqualError(t, e, "webhook: secret "+reason)
	}
}

func TestNewSecretIsRandomAndParses(t *testing.T) {
	t.Parallel()
	a, b := webhook.NewSecret(), webhook.NewSecret()
	require.False(t, a.Equal(b))
	require.True(t, a.Equal(mustParse(t, a.Reveal())))
	require.Len(t, a.Reveal(), len(secretOf(32)))
}

func TestSecretsAreEqualByTheirKeys(t *testing.T) {
	t.Parallel()
	var zero webhook.Secret
	s := mustParse(t, secretOf(24))
	require.True(t, s.Equal(mustParse(t, secretOf(24))))
	require.False(t, s.Equal(mustParse(t, secretOf(25))))
	require.True(t, zero.Equal(webhook.Secret{}))
	require.False(t, zero.Equal(s))
	require.False(t, s.Equal(zero))
	require.Empty(t, zero.Reveal())
}

// holder keeps secrets where fmt can't call their methods.
type holder struct {
	hidden  webhook.Secret
	Shown   webhook.Secret
	pointer *webhook.Secret
	list    []webhook.Secret
	byName  map[string]webhook.Secret
}

func TestASecretPrintsAsStarsWhateverPrintsIt(t *testing.T) { // H4, W14
	t.Parallel()
	s := mustParse(t, secretOf(24))
	for verb := range strings.SplitSeq("%v %+v %#v %s %q %x %X %d %b %o %c %U %e %20s %-20v %.1s %#x %+d", " ") {
		require.Equal(t, "***", fmt.Sprintf(verb, s), verb)
		require.NotContains(t, fmt.Sprintf(verb, &s), "fb", verb)
		require.Equal(t, "***", fmt.Sprintf(verb, webhook.Secret{}), verb)
	}
	require.Equal(t, "***", s.String())
	require.Equal(t, "***", s.GoString())
	require.Equal(t, "*** ***\n", fmt.Sprintln(s, s))
	// %p is the one verb that asks nobody: it shows where the key lies, not the key.
	require.NotContains(t, fmt.Sprintf("%p", s), "251")

	h := holder{hidden: s, Shown: s, pointer: &s, list: []webhook.Secret{s}, byName: map[string]webhook.Secret{"a": s}}
	key := strings.TrimPrefix(s.Reveal(), "whsec_")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%e", "%p", "%z"} {
		for _, printed := range []string{fmt.Sprintf(verb, h), fmt.Sprintf(verb, &h), fmt.Sprintf(verb, []any{h})} {
			for _, leak := range []string{key, "fbfbfb", "FBFBFB", "251 251", "0xfb, 0xfb", `\xfb\xfb`} {
				require.NotContains(t, printed, leak, verb)
			}
		}
	}
}

func TestASecretIsEncodedAsStars(t *testing.T) {
	t.Parallel()
	s := mustParse(t, secretOf(24))
	type config struct {
		Secret webhook.Secret
		List   []webhook.Secret
	}
	encoded, err := json.Marshal(config{s, []webhook.Secret{s}})
	require.NoError(t, err)
	require.JSONEq(t, `{"Secret":"***","List":["***"]}`, string(encoded))
	keyed, err := json.Marshal(map[string]any{"a": &s})
	require.NoError(t, err)
	require.JSONEq(t, `{"a":"***"}`, string(keyed))
	encoded, err = xml.Marshal(config{Secret: s})
	require.NoError(t, err)
	require.Equal(t, "<config><Secret>***</Secret></config>", string(encoded))
}

func TestASecretIsLoggedAsStars(t *testing.T) {
	t.Parallel()
	s := mustParse(t, secretOf(24))
	h := holder{hidden: s, Shown: s, pointer: &s, list: []webhook.Secret{s}}
	var out bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		out.Reset()
		slog.New(handler).With("with", s).Error("x", "secret", s, "pointer", &s, "list", []webhook.Secret{s}, "holder", h, slog.Group("g", "s", s))
		require.Contains(t, out.String(), "***")
		require.NotContains(t, out.String(), strings.TrimPrefix(s.Reveal(), "whsec_"))
		require.NotContains(t, out.String(), "251 251")
	}
}

func TestASecretIsReadFromConfigurationButNotFromItsStars(t *testing.T) {
	t.Parallel()
	var c struct{ Secret webhook.Secret }
	require.NoError(t, json.Unmarshal([]byte(`{"Secret":"`+secretOf(24)+`"}`), &c))
	require.Equal(t, secretOf(24), c.Secret.Reveal())
	before := c.Secret
	require.Error(t, json.Unmarshal([]byte(`{"Secret":"***"}`), &c))
	require.True(t, before.Equal(c.Secret), "an error leaves the value alone")
}
