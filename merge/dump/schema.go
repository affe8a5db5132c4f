package dump

import _ "embed"

// LineSchema is the JSON schema of a line that Options.JSON prints. Values are only ever added.
//
//go:embed line.schema.json
var LineSchema []byte
