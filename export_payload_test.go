package rebase

// The unexported functions that the black-box tests of payloads and texts call.
var (
	EncodePayload = encodePayload
	CheckText     = checkText
	CheckTask     = checkTask
	CheckLane     = checkLane
	EncodeMeta    = encodeMeta
	Storable      = storable
	ErrorText     = errorText
)

// LimitBatch makes the cap of a batch small enough for a test.
func (q *Queue) LimitBatch(bytes int) { q.maxBatch = bytes }
