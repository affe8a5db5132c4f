module github.com/sigmatrace/sigmatrace

go 1.26.0

require (
	github.com/BurntSushi/toml v1.6.0
	github.com/klauspost/compress v1.20.4
	golang.org/x/sync v0.25.0
)
