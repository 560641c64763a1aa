// promtool, where it is installed, has the last word on the rules: they are loaded by it, and
// alerts_test.yml shows each alert firing on a history that it is meant for.

package prom_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func promtool(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (apt-get install --no-install-recommends prometheus has it): the alerts are parsed, but not tried")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func TestPromtoolTakesTheAlerts(t *testing.T) {
	t.Parallel()
	require.Contains(t, promtool(t, "check", "rules", "alerts.yml"), "SUCCESS")
}

func TestPromtoolSeesEveryAlertFireWhenItShould(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("alerts_test.yml")
	require.NoError(t, err)
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, a := range test.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
			rests[a.Alertname] = rests[a.Alertname] || len(a.ExpAlerts) == 0
		}
	}
	for _, a := range readAlerts(t) {
		require.True(t, fires[a.Alert], "%s is never seen to fire", a.Alert)
		require.True(t, rests[a.Alert], "%s is never seen at rest", a.Alert)
	}
	require.Contains(t, promtool(t, "test", "rules", "alerts_test.yml"), "SUCCESS")
}

// The dashboard's expressions, put into a file of rules.
func TestPromtoolTakesTheExpressionsOfTheDashboard(t *testing.T) {
	t.Parallel()
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	for _, expr := range readDashboard(t).expressions() {
		rules = append(rules, rule{"dashboard:expression" + strings.Repeat("_", len(rules)), expr})
	}
	raw, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	require.Contains(t, promtool(t, "check", "rules", path), "SUCCESS")
}
