package timeline

// statusNames are the completion statuses of each layer by absolute value: ibv_wc_status, ucs_status_t and FI_E... as their headers name
// them. "": a value without a name here.
var statusNames = map[string][]string{
	"verbs": {"success", "local length error", "local QP operation error", "local EE context operation error", "local protection error",
		"flushed", "memory window bind error", "bad response", "local access error", "remote invalid request", "remote access error",
		"remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation",
		"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state", "fatal error",
		"response timeout", "general error", "tag matching error", "tag matching rendezvous incomplete"},
	"ucp": ucsStatuses,
	"uct": ucsStatuses,
	"ofi": {0: "success", 1: "not permitted", 2: "no entry", 5: "input/output error", 7: "argument list too long", 11: "try again",
		12: "no memory", 13: "permission denied", 16: "busy", 19: "no device", 22: "invalid argument", 28: "no space", 38: "not implemented",
		42: "no message", 61: "no data", 90: "message too long", 95: "not supported", 98: "address in use", 99: "address not available",
		100: "network down", 101: "network unreachable", 103: "connection aborted", 104: "connection reset", 105: "no buffer space",
		107: "not connected", 108: "shut down", 110: "timed out", 111: "connection refused", 112: "host down", 113: "host unreachable",
		121: "remote input/output error", 125: "canceled", 129: "key rejected", 256: "other error", 257: "message too small",
		258: "operation in wrong state", 259: "error available", 260: "bad flags", 261: "no event queue", 262: "domain mismatch",
		263: "no completion queue", 264: "bad CRC", 265: "message truncated", 266: "no key", 267: "no address vector", 268: "overrun",
		269: "receiver not ready"},
}

var ucsStatuses = []string{
	"success", "no message", "no resource", "input/output error", "no memory", "invalid parameter", "unreachable",
	"invalid address", "not implemented", "message truncated", "no progress", "buffer too small", "no such element",
	"some connections failed", "no such device", "busy", "canceled", "shared memory error", "already exists", "out of range",
	"timed out", "limit exceeded", "unsupported", "rejected", "not connected", "connection reset",
}
