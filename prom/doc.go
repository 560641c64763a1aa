// Package prom gives Prometheus the figures of a rebase queue. There are two sources, because
// there are two kinds of truth:
//
//   - [Metrics] counts what this process did and saw: jobs enqueued, claimed, succeeded and so
//     on, how long handlers ran and how long jobs waited. Every process has its own counts, to
//     be summed.
//   - [Collector] asks the database how the queue is doing when it is scraped: ready jobs, the
//     oldest of them, dead letters, what makes the queue sick from outside. Every process
//     reports the same, to be taken once (by max).
//
// The only label is the task; a histogram has its le besides. Neither workers, lanes nor ids
// are labels, so the number of series doesn't grow with the size of the fleet or of the data.
//
// Beside the package lie dashboard.json for Grafana and alerts.yml for Prometheus.
package prom
