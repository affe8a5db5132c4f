# The sigmatrace command: one static binary, so that a preload never runs inside it.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

all: $(B)/bin/sigmatrace
.PHONY: $(B)/bin/sigmatrace # go knows best what is out of date
$(B)/bin/sigmatrace:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-E main.entry -X main.version=$(VERSION)' -o $@ ./launcher

# What the libraries are, for `sigmatrace doctor`: the version, and the build id of each.
all: $(LIBDIR)/BUILD
.PHONY: $(LIBDIR)/BUILD
$(LIBDIR)/BUILD: $(LIBDIR)/libsigmatrace.so $(PROVIDERS:%=$(LIBDIR)/provider-%.so) $(SETS:%=$(LIBDIR)/libsigmatrace.%.so)
	@{ echo "sigmatrace $(VERSION)"; for f in $^; do echo "$${f##*/} $$(readelf -n $$f | sed -n 's/.*Build ID: //p')"; done; } >$@.new
	@mv $@.new $@

# The manual pages, made from the command's own tables and launcher/manual/.
all: man
.PHONY: man
man: $(B)/bin/sigmatrace
	rm -rf $(B)/man.new && $< manual $(B)/man.new
	diff -qr $(B)/man.new $(B)/share/man >/dev/null 2>&1 || { mkdir -p $(B)/share && rm -rf $(B)/share/man && cp -r $(B)/man.new $(B)/share/man; }
	rm -rf $(B)/man.new

# The optional daemon that publishes clock calibrations.
all: $(B)/bin/sigmatrace-clockd
.PHONY: $(B)/bin/sigmatrace-clockd
$(B)/bin/sigmatrace-clockd:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o $@ ./launcher/clockd
