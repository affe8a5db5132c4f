package profiles

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxNumber bounds ranks and counts: what the recorder's reader in C takes without overflow.
const maxNumber = 1 << 53

// parseDuration reads a duration such as "30s" or "1h30m".
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil {
		return 0, &Problem{What: fmt.Sprintf("%q is not a duration", text), Advice: "write a number with ms, s, m or h, such as 30s or 1h30m"}
	}
	return d, nil
}

func (k *Key) canonicalDuration(text string) (string, error) {
	d, err := parseDuration(text)
	switch {
	case err != nil:
		return "", err
	case d < 0:
		return "", &Problem{What: fmt.Sprintf("%v is negative", d)}
	case d > 0 && int64(d) < k.Min:
		return "", &Problem{What: fmt.Sprintf("%v is less than %v", d, time.Duration(k.Min))}
	}
	return strconv.FormatInt(int64(d), 10) + "ns", nil
}

func (k *Key) canonicalNumber(text string) (string, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	switch {
	case err != nil || n > maxNumber:
		advice := fmt.Sprintf("write a whole number, from %d", k.Min)
		if k.Max > 0 {
			advice = fmt.Sprintf("write a whole number from %d to %d", k.Min, k.Max)
		}
		return "", &Problem{What: fmt.Sprintf("%q is not a number", text), Advice: advice}
	case int64(n) < k.Min:
		return "", &Problem{What: fmt.Sprintf("%d is less than %d", n, k.Min)}
	case k.Max > 0 && int64(n) > k.Max:
		return "", &Problem{What: strings.Join(strings.Fields(fmt.Sprintf("%d is more than %s %d", n, k.Beyond, k.Max)), " ")}
	}
	return strconv.FormatUint(n, 10), nil
}

// span is a range of ranks, both ends included.
type span struct{ first, last uint64 }

// canonicalRanges reads "0-7,16" and returns it in order, without overlaps and spaces; of: a rank, say.
func canonicalRanges(text, of string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "", nil
	}
	var spans []span
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		s, err := strconv.ParseUint(strings.TrimSpace(first), 10, 64)
		e := s
		if err == nil && isRange {
			e, err = strconv.ParseUint(strings.TrimSpace(last), 10, 64)
		}
		switch {
		case err != nil || s > maxNumber || e > maxNumber:
			return "", &Problem{What: fmt.Sprintf("%q is not a %s or a range of %[2]ss", strings.TrimSpace(item), of), Advice: "write " + of + "s and ranges, comma separated, such as 0-7,16"}
		case e < s:
			return "", &Problem{What: fmt.Sprintf("the range %s ends before it begins", strings.TrimSpace(item))}
		}
		spans = append(spans, span{s, e})
	}
	slices.SortFunc(spans, func(a, b span) int { return int(int64(a.first) - int64(b.first)) })
	merged := spans[:1]
	for _, s := range spans[1:] {
		if m := &merged[len(merged)-1]; s.first <= m.last+1 {
			m.last = max(m.last, s.last)
		} else {
			merged = append(merged, s)
		}
	}
	words := make([]string, len(merged))
	for i, s := range merged {
		words[i] = strconv.FormatUint(s.first, 10)
		if s.last > s.first {
			words[i] += "-" + strconv.FormatUint(s.last, 10)
		}
	}
	return strings.Join(words, ","), nil
}

// canonicalPatterns checks patterns of executables.
func canonicalPatterns(items []string) (string, error) {
	for i, item := range items {
		switch {
		case item == "":
			return "", &Problem{What: "an empty pattern matches nothing"}
		case strings.Contains(item, ","):
			return "", &Problem{What: fmt.Sprintf("the pattern %q has a comma", item), Advice: "write ? for it"}
		case item != strings.TrimSpace(item):
			return "", &Problem{What: fmt.Sprintf("the pattern %q begins or ends with a space", item)}
		case slices.Contains(items[:i], item):
			return "", &Problem{What: fmt.Sprintf("%q is there twice", item)}
		}
	}
	return strings.Join(items, ","), nil
}
