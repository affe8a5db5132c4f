package main

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestJSONKeepsToItsSchema(t *testing.T) {
	for schema, command := range map[string][]string{
		"schema/profile-list.schema.json":    {"profile", "list", "--json"},
		"schema/profile-show.schema.json":    {"profile", "show", "full", "--json"},
		"schema/profile-explain.schema.json": {"profile", "explain", "full", "--json", "--set", "merge.exports="},
	} {
		out, err := exec.Command("sigmatrace", command...).Output()
		if err != nil {
			t.Fatalf("%q: %v", command, err)
		}
		compiled, err := jsonschema.NewCompiler().Compile(schema)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out))
		if err != nil {
			t.Fatalf("%q: %v", command, err)
		}
		if err := compiled.Validate(value); err != nil {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
		if err := compiled.Validate(map[string]any{"values": 3.5}); err == nil {
			t.Errorf("%s takes anything", schema)
		}
	}
}
