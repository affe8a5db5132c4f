module github.com/sigmatrace/sigmatrace

go 1.26.0

ignore ./build
