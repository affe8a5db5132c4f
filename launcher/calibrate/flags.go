package calibrate

import (
	"errors"
	"time"

	"github.com/urfave/cli/v2"
)

// Flags are the options of a command that makes records.
func Flags() []cli.Flag {
	d := Default()
	return []cli.Flag{
		&cli.DurationFlag{Name: "limit", Value: d.Limit, Usage: "take no longer than `TIME`"},
		&cli.StringSliceFlag{Name: "ptp-socket", Value: cli.NewStringSlice(d.PTPSockets...), Usage: "ask ptp4l at `SOCKET`; of several, the first that can be used"},
		&cli.IntFlag{Name: "ptp-domain", Usage: "ptp4l's domain `NUMBER`"},
		&cli.StringFlag{Name: "chrony", Value: d.ChronyUDP, Usage: "ask chronyd at `ADDRESS`"},
		&cli.StringFlag{Name: "chrony-socket", Value: d.ChronySocket, Usage: "and where that is closed, at `SOCKET`"},
		&cli.StringFlag{Name: "ntp", Value: d.NTP, Usage: "ask ntpd at `ADDRESS`"},
		&cli.StringFlag{Name: "phc", Value: d.PHCs, Usage: "read the hardware clocks whose devices match `PATTERN`"},
	}
}

// FromFlags returns what they say.
func FromFlags(c *cli.Context) (Options, error) {
	o := Options{Limit: c.Duration("limit"), PTPSockets: c.StringSlice("ptp-socket"), PTPDomain: c.Int("ptp-domain"), ChronyUDP: c.String("chrony"),
		ChronySocket: c.String("chrony-socket"), NTP: c.String("ntp"), PHCs: c.String("phc")}
	switch {
	case o.Limit <= 0 || o.Limit > time.Minute:
		return o, errors.New("--limit has to be more than 0, and a minute at most")
	case o.PTPDomain < 0 || o.PTPDomain > 255:
		return o, errors.New("--ptp-domain has to be 0 to 255")
	}
	return o, nil
}
