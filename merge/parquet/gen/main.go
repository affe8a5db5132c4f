// Command gen writes the page of the Parquet tables' columns, from the package that writes them.
//
//	go run ./merge/parquet/gen
package main

import (
	"fmt"
	"os"

	"github.com/sigmatrace/sigmatrace/merge/parquet"
)

func main() {
	if err := os.WriteFile("merge/parquet/SCHEMA.md", parquet.Page(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gen: error: writing the page of the Parquet tables:", err)
		os.Exit(1)
	}
}
