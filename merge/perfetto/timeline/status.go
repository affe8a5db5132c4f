package timeline

// statusNames are the completion statuses of each layer by absolute value: ibv_wc_status and ucs_status_t as their headers name them.
var statusNames = map[string][]string{
	"verbs": {"success", "local length error", "local QP operation error", "local EE context operation error", "local protection error",
		"flushed", "memory window bind error", "bad response", "local access error", "remote invalid request", "remote access error",
		"remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation",
		"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state", "fatal error",
		"response timeout", "general error", "tag matching error", "tag matching rendezvous incomplete"},
	"ucp": ucsStatuses,
	"uct": ucsStatuses,
}

var ucsStatuses = []string{
	"success", "no message", "no resource", "input/output error", "no memory", "invalid parameter", "unreachable",
	"invalid address", "not implemented", "message truncated", "no progress", "buffer too small", "no such element",
	"some connections failed", "no such device", "busy", "canceled", "shared memory error", "already exists", "out of range",
	"timed out", "limit exceeded", "unsupported", "rejected", "not connected", "connection reset",
}
