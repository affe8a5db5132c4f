package profiles

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var sizeUnits = []struct {
	suffix string
	factor int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseSize reads a number of bytes: "1048576", "1048576B", "1024KiB", "1MiB", "2GiB", "1TiB". Powers of 1000 are not taken: whether
// "MB" means 1000 or 1024 squared is a guess.
func ParseSize(text string) (int64, error) {
	digits, factor := strings.TrimSpace(text), int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(digits, u.suffix); ok {
			digits, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || int64(n) > math.MaxInt64/factor {
		return 0, &Problem{What: fmt.Sprintf("%q is not a size", text),
			Advice: "write a number of bytes or one with KiB, MiB, GiB or TiB, such as 256MiB"}
	}
	return int64(n) * factor, nil
}

// FormatSize writes n bytes with the largest unit that divides it.
func FormatSize(n int64) string {
	for _, u := range sizeUnits {
		if u.factor > 1 && n >= u.factor && n%u.factor == 0 {
			return strconv.FormatInt(n/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
