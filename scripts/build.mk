# The Go command of every build rule finds or fetches the toolchain that go.mod names, unless one is given: make GO=...
ifeq ($(origin GO),file)
GO := $(CURDIR)/scripts/go.sh
endif

.PHONY: deps
deps:
	scripts/deps.sh build

.PHONY: demo
demo:
	scripts/demo.sh

.PHONY: deb
deb:
	scripts/deps.sh build deb
	$(MAKE) all
	scripts/deb

PREFIX ?= /usr/local
.PHONY: install
install: all
	scripts/install --prefix $(PREFIX)
