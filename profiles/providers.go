package profiles

// Provider is one preloadable library that records one communication library's calls.
type Provider struct {
	Name string // as written in a profile and in the library's file name, provider-<name>.so
	Doc  string // what it records, for `sigmatrace profile` and the README
}

// Providers is the table of known providers, in the order in which they are preloaded: the layer nearest the application first.
var Providers = []Provider{
	{"ucx", "UCP calls of UCX: tag, stream, put, get, atomic, active message, flush; in full mode the UCT operations below them"},
	{"libfabric", "libfabric: messages, tagged messages, remote memory access and atomics of endpoints, and completions"},
	{"ibverbs", "libibverbs: devices, queue pairs, posted requests and completions"},
	{"cuda", "requests that GPU kernels post by themselves: doorbells, and the work queue elements they cover; together with ibverbs"},
}

func providerNames() []string {
	names := make([]string, len(Providers))
	for i, p := range Providers {
		names[i] = p.Name
	}
	return names
}
