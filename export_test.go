package rebase
