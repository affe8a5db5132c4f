package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// slurmRounds: a round is one srun in each way.
const slurmRounds = 40

// slurmLoop runs inside the cluster, as root, who may write plugstack.conf: `srun true` in each way by turns, then how long programs take to start in a task.
// Arguments: folder of the cluster, the plugin's line, rounds, folder for runs, spawn. Prints lines "WHAT WAY MICROSECONDS".
const slurmLoop = `
conf=$1/etc/plugstack.conf line=$2 rounds=$3 runs=$4 spawn=$5
ways=(empty unasked asked)
choose() {
	args=()
	case $1 in
	empty) : >"$conf" ;;
	unasked) echo "$line" >"$conf" ;;
	asked) echo "$line" >"$conf"; args=(--sigmatrace=simple --sigmatrace-output="$runs") ;;
	esac
}
for ((i = 0; i < rounds; i++)); do
	for ((k = 0; k < 3; k++)); do
		way=${ways[i % 2 ? (i + k) % 3 : (i + 2 * k) % 3]} # behind each of the others as often
		choose $way
		sleep 0.2 # the nodes still tidy up after the last one
		begin=${EPOCHREALTIME/[.,]/}
		srun -Q "${args[@]}" true 2>/dev/null || exit 1
		echo srun $way $((${EPOCHREALTIME/[.,]/} - begin))
	done
	[ $((i % 4)) = 0 ] || continue
	for way in "${ways[@]}"; do
		choose $way
		read -r least quarter median < <(srun -Q "${args[@]}" "$spawn" 200 /bin/true "" 2>/dev/null) || exit 1
		echo task $way $median
	done
done
`

// slurm measures what the Slurm plugin adds to srun and to the start of a program in a task, where it is not asked for and where it is. The baseline is
// the same cluster with an empty plugstack.conf; all ways take turns.
func slurm(b *bench) error {
	spawn, err := b.compile("spawn")
	if err != nil {
		return err
	}
	plugin := filepath.Join(b.build, "lib/slurm/spank_sigmatrace.so")
	if _, err := os.Stat(plugin); err != nil {
		return fmt.Errorf("the Slurm plugin is not built: %w", err)
	}
	dir := filepath.Join(b.build, "cluster-bench")
	environ := []string{"SIGMATRACE_CLUSTER=" + dir}
	if _, err := b.command(environ, "scripts/cluster", "up"); err != nil {
		return err
	}
	defer b.command(environ, "scripts/cluster", "down")
	runs := filepath.Join(dir, "runs")
	defer os.RemoveAll(runs)
	out, err := b.command(environ, "scripts/cluster", "run", "--user=root", "bash", "-c", slurmLoop, "loop", dir, "optional "+plugin, strconv.Itoa(slurmRounds), runs, spawn)
	if err != nil {
		return err
	}
	took := map[string][]float64{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return fmt.Errorf("the loop printed %q", line)
		}
		us, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return err
		}
		took[fields[0]+"_"+fields[1]] = append(took[fields[0]+"_"+fields[1]], us)
	}
	for _, what := range []struct {
		name, unit, command string
		scale               float64
	}{{"srun", "ms", "srun true", 1000}, {"task", "us", "srun spawn 200 /bin/true", 1}} {
		for _, statistic := range []struct {
			name string
			of   func([]float64) float64
		}{{"least", slices.Min[[]float64]}, {"median", median}} {
			empty := statistic.of(took[what.name+"_empty"]) / what.scale
			for _, way := range []string{"empty", "unasked", "asked"} {
				b.print("slurm_"+what.name+"_"+way+"_"+statistic.name, statistic.of(took[what.name+"_"+way])/what.scale, what.unit, empty, "empty plugstack.conf", what.command)
			}
		}
	}
	return nil
}
