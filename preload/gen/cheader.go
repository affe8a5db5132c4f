package main

import "github.com/sigmatrace/sigmatrace/merge/catalogue"

func cHeader(c *catalogue.Catalogue) ([]byte, error) { return []byte("#pragma once\n"), nil }
