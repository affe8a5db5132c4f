package timelinetest

import "syscall"

// CPU is the processor time of this process in seconds: on a busy machine it says more than the time that passed.
func CPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
