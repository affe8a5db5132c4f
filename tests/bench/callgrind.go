package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// instructions runs a program under callgrind and returns the instructions executed by each shared object, by base name, and in
// all ("").
func (b *bench) instructions(env []string, args ...string) (map[string]float64, error) {
	out := filepath.Join(b.dir, "callgrind.out")
	full := append([]string{"valgrind", "--tool=callgrind", "--callgrind-out-file=" + out}, args...)
	if _, err := b.command(env, full...); err != nil {
		return nil, err
	}
	f, err := os.Open(out)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sums, err := sumByObject(bufio.NewScanner(f))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", out, err)
	}
	return sums, nil
}

var object = regexp.MustCompile(`^ob=\((\d+)\)(?: (.*))?$`)

// sumByObject adds up the self costs of a callgrind profile (Valgrind manual, Callgrind Format Specification). The line after
// "calls=" is the callee's cost, which is listed under the callee itself.
func sumByObject(lines *bufio.Scanner) (map[string]float64, error) {
	lines.Buffer(nil, 1<<20)
	sums, names := map[string]float64{}, map[string]string{}
	current, called := "", false
	for lines.Scan() {
		line := lines.Text()
		if m := object.FindStringSubmatch(line); m != nil {
			if m[2] != "" {
				names[m[1]] = filepath.Base(m[2])
			}
			current = names[m[1]]
			continue
		}
		if strings.HasPrefix(line, "cob=(") { // names given at a call count for later lines too
			if id, name, ok := strings.Cut(strings.TrimPrefix(line, "cob=("), ") "); ok {
				names[id] = filepath.Base(name)
			}
			continue
		}
		if strings.HasPrefix(line, "calls=") {
			called = true
			continue
		}
		if line == "" || !strings.ContainsRune("0123456789+-*", rune(line[0])) {
			continue
		}
		if called {
			called = false
			continue
		}
		_, cost, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(cost), 64)
		if err != nil {
			return nil, fmt.Errorf("cost line %q: %w", line, err)
		}
		sums[current] += n
		sums[""] += n
	}
	return sums, lines.Err()
}

// perEvent runs a program with two numbers of events and returns the instructions that one more event costs in the named objects
// (all when none is named).
func (b *bench) perEvent(env []string, few, many int, objects []string, args func(n int) []string) (float64, error) {
	var total [2]float64
	for i, n := range []int{few, many} {
		sums, err := b.instructions(env, args(n)...)
		if err != nil {
			return 0, err
		}
		if len(objects) == 0 {
			total[i] = sums[""]
		}
		for _, o := range objects {
			total[i] += sums[o]
		}
	}
	return (total[1] - total[0]) / float64(many-few), nil
}
