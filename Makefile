# sigmatrace: `make` builds into build/; each part owns its fragment, NAME/build.mk.
B := build
CC ?= gcc
CWARN := -std=gnu11 -Wall -Wextra -Werror
GO ?= go
LIBDIR := $(B)/lib/sigmatrace

all:
.PHONY: all clean

include $(wildcard preload/build.mk profiles/build.mk launcher/build.mk merge/build.mk spank/build.mk tests/build.mk tests/*/build.mk scripts/build.mk)

clean:
	rm -rf $(B)
