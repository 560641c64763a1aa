// Package crontest compares package cron with github.com/robfig/cron/v3, in a module
// of its own, so that nobody who uses the queue gets that dependency. It has tests only.
package crontest
