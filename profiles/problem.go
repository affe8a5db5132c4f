package profiles

import (
	"errors"
	"fmt"
	"strings"

	"github.com/xrash/smetrics"
)

// Problem is an error in a profile, a variable or an option: where it is, what is wrong, what would be right.
type Problem struct {
	Where   string // "file:line", a variable's name, an option; empty where the caller adds it
	What    string
	Valid   []string // the values that would be valid
	Nearest string   // the valid value that is most like the given one
	Advice  string   // what to do, where the valid values do not say it
}

func (p *Problem) Error() string {
	s := p.What
	if p.Where != "" {
		s = p.Where + ": " + s
	}
	if p.Nearest != "" {
		s += fmt.Sprintf("; did you mean %q?", p.Nearest)
	}
	return s
}

// Hint says what to do about the problem, or is empty.
func (p *Problem) Hint() string {
	if p.Advice != "" {
		return p.Advice
	}
	if len(p.Valid) > 0 {
		return "valid: " + strings.Join(p.Valid, ", ")
	}
	return ""
}

// Problems are all problems that were found in one go.
type Problems []*Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

func (ps Problems) orNil() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// at gives the problem in err, if it is one, a place and a key.
func at(where, key string, err error) *Problem {
	var p *Problem
	if !errors.As(err, &p) {
		return &Problem{Where: where, What: key + ": " + err.Error()}
	}
	located := *p
	located.Where = where
	if key != "" {
		located.What = key + ": " + p.What
	}
	return &located
}

func badValue(text string, valid []string) *Problem {
	return &Problem{What: fmt.Sprintf("%q is not valid", text), Valid: valid, Nearest: Nearest(text, valid)}
}

// Nearest returns the entry of valid that a person who typed text most likely meant, or "" where none is close.
func Nearest(text string, valid []string) string {
	best, bestCost := "", len(text)/3+2
	for _, v := range valid {
		if v == text {
			continue // it is valid elsewhere
		}
		if cost := smetrics.WagnerFischer(strings.ToLower(text), strings.ToLower(v), 1, 1, 1); cost < bestCost {
			best, bestCost = v, cost
		}
	}
	return best
}
