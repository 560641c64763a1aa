// The dashboard and the alerts name metrics and labels; these tests read them out of the
// expressions, with Prometheus's own parser, and look for each in what the package exports. So
// a metric that is renamed, or misspelt in a panel, is found here and not on the day it is
// needed.

package prom_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// exported are the series of the package, by name, with their labels.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	families, err := full(t).Gather()
	require.NoError(t, err)
	series := map[string][]string{}
	for _, f := range families {
		// What Prometheus adds to every series that it scrapes.
		have := []string{"job", "instance"}
		for _, l := range f.GetMetric()[0].GetLabel() {
			have = append(have, l.GetName())
		}
		if f.GetType() != dto.MetricType_HISTOGRAM {
			series[f.GetName()] = have
			continue
		}
		series[f.GetName()+"_bucket"] = append(slices.Clone(have), "le")
		series[f.GetName()+"_sum"], series[f.GetName()+"_count"] = have, have
	}
	return series
}

// check finds what an expression names and nobody exports. It returns the metrics that it
// uses.
func check(expr string, series map[string][]string) (used, wrong []string) {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, []string{err.Error()}
	}
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			used = append(used, n.Name)
			if _, ok := series[n.Name]; !ok {
				wrong = append(wrong, "metric "+n.Name)
			}
			for _, m := range n.LabelMatchers {
				if m.Name != model.MetricNameLabel && !slices.Contains(series[n.Name], m.Name) {
					wrong = append(wrong, "label "+m.Name+" of "+n.Name)
				}
			}
		case *parser.AggregateExpr:
			wrong = append(wrong, missing(n.Expr, n.Grouping, series)...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				wrong = append(wrong, missing(n, slices.Concat(n.VectorMatching.MatchingLabels, n.VectorMatching.Include), series)...)
			}
		}
		return nil
	})
	return used, wrong
}

// missing are the labels that some series below the node lacks.
func missing(below parser.Node, names []string, series map[string][]string) (wrong []string) {
	parser.Inspect(below, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			for _, name := range names {
				if !slices.Contains(series[s.Name], name) {
					wrong = append(wrong, "label "+name+" of "+s.Name)
				}
			}
		}
		return nil
	})
	return wrong
}

// The checks themselves: each kind of mistake is found.
func TestAMisspeltMetricOrLabelInAnExpressionIsFound(t *testing.T) {
	t.Parallel()
	series := exported(t)
	for expr, want := range map[string]string{
		`sum by (task) (rate(rebase_jobs_succeded_total[5m]))`:                             "metric rebase_jobs_succeded_total",
		`rebase_jobs_ready{queue="x"}`:                                                     "label queue of rebase_jobs_ready",
		`max by (task) (rebase_workers)`:                                                   "label task of rebase_workers",
		`rebase_jobs_ready * on (task) rebase_up`:                                          "label task of rebase_up",
		`histogram_quantile(0.9, sum by (le) (rate(rebase_handler_duration_seconds[5m])))`: "metric rebase_handler_duration_seconds",
		`sum by (le) (rate(rebase_handler_duration_seconds_sum[5m]))`:                      "label le of rebase_handler_duration_seconds_sum",
		`sum by (task (rebase_up)`:                                                         "1:14: parse error: unexpected \"(\" in grouping opts, expected \",\" or \")\"",
	} {
		_, wrong := check(expr, series)
		require.Contains(t, wrong, want, expr)
	}
	used, wrong := check(`max by (job, task) (rebase_jobs_ready{task=~"a"}) and on (job) max by (job) (rebase_up) == 1`, series)
	require.Empty(t, wrong)
	require.Equal(t, []string{"rebase_jobs_ready", "rebase_up"}, used)
}

// A panel of the dashboard, as far as it concerns the tests.
type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ H, W, X, Y int }
	Targets     []struct{ Expr string }
}

type dashboard struct {
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	raw, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &d))
	return d
}

// grafana stands for what Grafana puts in place of its variables.
var grafana = strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$task", ".*")

func (d dashboard) expressions() (all []string) {
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, grafana.Replace(target.Expr))
		}
	}
	return all
}

func TestEveryMetricAndLabelOfTheDashboardIsExported(t *testing.T) {
	t.Parallel()
	series, d := exported(t), readDashboard(t)
	seen := map[string]bool{}
	require.NotEmpty(t, d.expressions())
	for _, expr := range d.expressions() {
		require.NotContains(t, expr, "$")
		used, wrong := check(expr, series)
		require.Empty(t, wrong, expr)
		for _, name := range used {
			seen[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")] = true
		}
	}
	values := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			m := values.FindStringSubmatch(v.Definition)
			require.NotNil(t, m, v.Definition)
			used, wrong := check(grafana.Replace(m[1]), series)
			require.Empty(t, wrong, v.Definition)
			require.Contains(t, series[used[0]], m[2])
		}
	}
	// And the other way round: what is exported is shown, but for what only qualifies counts.
	families, err := full(t).Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "rebase_jobs_capped" {
			require.Contains(t, slices.Collect(maps.Keys(seen)), f.GetName())
		}
	}
}

// Grafana draws overlapping panels and equal ids without a word.
func TestPanelsHaveTheirOwnPlaceAndSayWhatTheyShow(t *testing.T) {
	t.Parallel()
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range readDashboard(t).Panels {
		require.False(t, ids[p.ID], "id %d twice", p.ID)
		ids[p.ID] = true
		require.NotEmpty(t, p.Title)
		if p.Type != "row" {
			require.NotEmpty(t, p.Description, p.Title)
			require.NotEmpty(t, p.Targets, p.Title)
		}
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], "%s lies on %s", p.Title, taken[at])
				taken[at] = p.Title
			}
		}
	}
}

type alert struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	raw, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct{ Groups []struct{ Rules []alert } }
	require.NoError(t, yaml.Unmarshal(raw, &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func TestEveryMetricAndLabelOfTheAlertsIsExported(t *testing.T) {
	t.Parallel()
	series := exported(t)
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, a := range readAlerts(t) {
		used, wrong := check(a.Expr, series)
		require.Empty(t, wrong, a.Alert)
		require.NotEmpty(t, used, a.Alert)
		require.Contains(t, []string{"warning", "critical"}, a.Labels["severity"], a.Alert)
		require.NotEmpty(t, a.Annotations["summary"], a.Alert)
		for _, text := range a.Annotations {
			for _, m := range label.FindAllStringSubmatch(text, -1) {
				require.Contains(t, []string{"job", "task"}, m[1], a.Alert)
				require.Contains(t, a.Expr, m[1], "%s: %s is aggregated away", a.Alert, m[1])
			}
		}
	}
}
