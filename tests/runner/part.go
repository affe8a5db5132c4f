package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// defaultLimit is how long a part may take that declares no limit of its own.
const defaultLimit = 10 * time.Minute

// part is one executable of the parts folder with what its "# runner:" line declares.
type part struct {
	name  string // "go-test" for 10-go-test.sh
	path  string
	alone bool // nothing else may run beside it: it measures, or wants every core
	quick bool // also part of `make test-quick`
	limit time.Duration
}

var partName = regexp.MustCompile(`^[0-9]{2}-([a-z0-9-]+)\.sh$`)

// findParts reads the parts folder in the order of its numbers. A file that is no part is an error, so that a
// misnamed one is not silently left out.
func findParts(dir string) ([]part, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("parts folder: %w", err)
	}
	var parts []part
	for _, e := range entries {
		m := partName.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("%s: a part is named NN-name.sh", filepath.Join(dir, e.Name()))
		}
		p := part{name: m[1], path: filepath.Join(dir, e.Name()), limit: defaultLimit}
		if slices.ContainsFunc(parts, func(o part) bool { return o.name == p.name }) {
			return nil, fmt.Errorf("%s: there is another part of this name", p.path)
		}
		if err := p.readDeclaration(); err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// readDeclaration reads the words of the line "# runner: WORD..." among the comments at the top: alone, quick, limit=DURATION.
func (p *part) readDeclaration() error {
	info, err := os.Stat(p.path)
	if err != nil {
		return err
	}
	if info.Mode()&0o111 == 0 {
		return fmt.Errorf("not executable")
	}
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() && strings.HasPrefix(sc.Text(), "#") {
		words, found := strings.CutPrefix(sc.Text(), "# runner:")
		if !found {
			continue
		}
		for _, w := range strings.Fields(words) {
			limit, isLimit := strings.CutPrefix(w, "limit=")
			switch {
			case w == "alone":
				p.alone = true
			case w == "quick":
				p.quick = true
			case isLimit:
				if p.limit, err = time.ParseDuration(limit); err != nil {
					return err
				}
			default:
				return fmt.Errorf("unknown word %q in the runner line: use alone, quick, limit=DURATION", w)
			}
		}
	}
	return sc.Err()
}

// selectParts keeps the parts whose name starts with one of names (all when there is none), less those named in
// without. A name that fits no part is an error.
func selectParts(parts []part, names, without []string, quick bool) ([]part, error) {
	for _, n := range slices.Concat(names, without) {
		if !slices.ContainsFunc(parts, func(p part) bool { return strings.HasPrefix(p.name, n) }) {
			return nil, fmt.Errorf("no part is named %q", n)
		}
	}
	var out []part
	for _, p := range parts {
		named := func(n string) bool { return strings.HasPrefix(p.name, n) }
		if quick && !p.quick || slices.Contains(without, p.name) || len(names) > 0 && !slices.ContainsFunc(names, named) {
			continue
		}
		out = append(out, p)
	}
	return out, nil
}
