package fleet

import (
	"crypto/sha256"
	"encoding/hex"
)

// traceSize is how many bytes a trace's id has (W3C Trace Context, section 3.2.2.3).
const traceSize = 16

// TraceID is the id of a workflow's trace, hex. It follows from the workflow's own id, so every process of an appliance, before and
// after a restart, says the same, and workflows of earlier versions have one.
func TraceID(workflow string) string {
	sum := sha256.Sum256([]byte("firstlight trace\x00" + workflow))
	return hex.EncodeToString(sum[:traceSize])
}
