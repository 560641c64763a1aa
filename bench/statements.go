package main

const (
	claimSQL, succeedSQL, overSQL, beginSQL, settingsSQL, commitSQL = "", "", "", "", "", ""
)
