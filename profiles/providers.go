package profiles

import "slices"

// Provider is one preloadable library that records one communication library's calls.
type Provider struct {
	Name string // as written in a profile and in the library's file name, provider-<name>.so
	Doc  string // what it records, for `sigmatrace profile` and the README
	// Needs are the providers without which it records nothing: where it is selected, they are too.
	Needs []string
}

// Providers is the table of known providers, in the order in which they are preloaded: the layer nearest the application first.
var Providers = []Provider{
	{Name: "ucx", Doc: "UCP calls of UCX: tag, stream, put, get, atomic, active message, flush; in full mode the UCT operations below them"},
	{Name: "libfabric", Doc: "libfabric: messages, tagged messages, remote memory access and atomics of endpoints, and completions"},
	{Name: "ibverbs", Doc: "libibverbs: devices, queue pairs, posted requests and completions"},
	{Name: "mlx5dv", Doc: "libmlx5: queues that programs make in the adapter themselves, with their peers; which queue pairs are used without any call",
		Needs: []string{"ibverbs"}},
	{Name: "cuda", Doc: "requests that GPU kernels post by themselves: doorbells, and the work queue elements they cover; launches of kernels, and when these ran", Needs: []string{"ibverbs", "mlx5dv"}},
	{Name: "nccl", Doc: "NCCL's profiler interface: communicators, collectives, point-to-point operations and what its network proxy does for them"},
}

// withNeeds returns a selection of providers, and behind it what they need.
func withNeeds(selected []string) []string {
	all := slices.Clone(selected)
	for _, p := range Providers {
		for _, n := range p.Needs {
			if slices.Contains(selected, p.Name) && !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	return all
}

func providerNames() []string {
	names := make([]string, len(Providers))
	for i, p := range Providers {
		names[i] = p.Name
	}
	return names
}
