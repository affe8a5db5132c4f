// Command gen makes the generated files of the event catalogue: C encoders, Go tables, rows of Parquet exports, and the reference page.
//
//	go run ./preload/gen            writes them
//	go run ./preload/gen -check     exits 1 when a committed file is not current
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

func main() {
	check := flag.Bool("check", false, "only compare the committed files with what would be written")
	source := flag.String("catalogue", "preload/events.toml", "catalogue to read")
	header := flag.String("header", "preload/events.gen.h", "C header to write")
	table := flag.String("go", "merge/catalogue/catalogue_gen.go", "Go table to write; empty: none")
	page := flag.String("page", "preload/EVENTS.md", "reference page to write; empty: none")
	rows := flag.String("rows", "merge/parquet/rows_gen.go", "rows of Parquet exports to write; empty: none")
	flag.Parse()
	if err := run(*source, *header, *table, *page, *rows, *check); err != nil {
		fmt.Fprintln(os.Stderr, "gen: error:", err)
		os.Exit(1)
	}
}

func run(source, header, table, page, rows string, check bool) error {
	text, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("reading the catalogue: %w", err)
	}
	c, err := catalogue.Parse(string(text))
	if err != nil {
		return err
	}
	for _, out := range []struct {
		path string
		make func(*catalogue.Catalogue) ([]byte, error)
	}{{header, cHeader}, {table, goTable}, {page, reference}, {rows, parquetRows}} {
		if out.path == "" {
			continue
		}
		want, err := out.make(c)
		if err != nil {
			return fmt.Errorf("making %s: %w", out.path, err)
		}
		if have, err := os.ReadFile(out.path); err == nil && bytes.Equal(have, want) {
			continue
		}
		if check {
			return fmt.Errorf("%s is not current: run go run ./preload/gen", out.path)
		}
		if err := os.WriteFile(out.path, want, 0o644); err != nil {
			return fmt.Errorf("writing %s: %w", out.path, err)
		}
	}
	return nil
}
