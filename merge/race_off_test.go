//go:build !race

package merge_test

const raceDetector = false
