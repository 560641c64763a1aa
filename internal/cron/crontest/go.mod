module github.com/rebasejobs/rebase/internal/cron/crontest

go 1.26.0

require (
	github.com/rebasejobs/rebase v0.0.0
	github.com/robfig/cron/v3 v3.0.1
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace github.com/rebasejobs/rebase => ../../..
